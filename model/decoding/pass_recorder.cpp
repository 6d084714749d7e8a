#include "model/decoding/pass_recorder.h"

#include <algorithm>

#include "runtime/error.h"

namespace jforge {

void PassRecorder::before_advance(const SequenceDecoder& decoder) {
  branches_.clear();
  for (const DraftBranch& branch : decoder.pending()) {
    branches_.push_back({.first_position = branch.first_position,
                         .tokens = {branch.tokens.begin(), branch.tokens.end()},
                         .alternative = branch.alternative});
  }
  begin_ = decoder.kv_length();
}

void PassRecorder::after_advance(const SequenceDecoder& decoder, const Commit& commit) {
  ends_.push_back(std::chrono::steady_clock::now());
  const std::int64_t end = decoder.kv_length();
  known_.clear();
  if (prompt_length_ == 0) {
    prompt_length_ = std::ssize(branches_.front().tokens);
  } else {
    Pass& pass = passes_.emplace_back(verified_draft(commit));
    // A draft's first token was known before the pass.
    const auto committed = std::max<std::int64_t>(end - begin_, 1);
    known_.assign(pass.draft.begin() + 1, pass.draft.begin() + committed);
  }
  if (!decoder.finished()) {
    known_.push_back(decoder.pending().front().tokens.front());
  }
  if (on_known_) {
    on_known_(known_);
  }
}

PassRecorder::Pass PassRecorder::verified_draft(const Commit& commit) const {
  Pass pass{.begin = begin_, .fork = begin_, .draft = {}};
  for (const Branch& branch : branches_) {
    if (!branch.alternative) {
      pass.draft.insert(pass.draft.end(), branch.tokens.begin(), branch.tokens.end());
    }
  }
  pass.fork += std::ssize(pass.draft);
  const Branch& winner = branches_.at(commit.branch);
  if (winner.alternative) {
    pass.fork = winner.first_position;
    pass.draft.resize(static_cast<std::size_t>(winner.first_position - begin_));
    pass.draft.insert(pass.draft.end(), winner.tokens.begin(), winner.tokens.end());
  }
  return pass;
}

std::vector<double> PassRecorder::seconds() const {
  std::vector<double> seconds;
  for (const auto end : ends_) {
    seconds.push_back(std::chrono::duration<double>(end - ends_.front()).count());
  }
  return seconds;
}

std::vector<TraceRow> PassRecorder::rows(std::span<const TokenId> tokens) const {
  expect(!tokens.empty() && prompt_length_ > 0, "rows of a sequence that has not been decoded");
  std::vector<TraceRow> rows{{{.position = 0, .token = tokens[0], .kind = TraceKind::accepted}}};
  const auto num_tokens = std::ssize(tokens);
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    const Pass& pass = passes_[i];
    const std::int64_t begin = pass.begin - prompt_length_;
    const std::int64_t known =
        i + 1 < passes_.size() ? passes_[i + 1].begin - prompt_length_ + 1 : num_tokens;
    TraceRow& row = rows.emplace_back();
    for (std::int64_t at = begin + 1; at < std::max(known, begin + std::ssize(pass.draft)); ++at) {
      const auto index = static_cast<std::size_t>(at - begin);
      const bool right = at < num_tokens && index < pass.draft.size() &&
                         pass.draft[index] == tokens[static_cast<std::size_t>(at)];
      TraceCell cell{.position = at};
      if (at < known) {
        const bool recycled = right && at + prompt_length_ >= pass.fork;
        cell.token = tokens[static_cast<std::size_t>(at)];
        cell.kind = recycled ? TraceKind::recycled : TraceKind::accepted;
      } else {
        cell.token = pass.draft[index];
        cell.kind = right ? TraceKind::stationary : TraceKind::draft;
      }
      row.push_back(cell);
    }
  }
  return rows;
}

}  // namespace jforge
