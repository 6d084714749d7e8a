#include "model/decoding/decode_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/error.h"
#include "runtime/phase_clock.h"

namespace jforge {

DecodeEngine::DecodeEngine(DecodeModel& model, std::int32_t batch_prompts) : model_(model) {
  const std::int32_t count = std::min(batch_prompts, model.num_slots());
  if (count < 1) {
    throw ConfigError(fmt::format(
        "batch decoding: {} sequences at once over {} cache slots; both must be at least 1",
        batch_prompts, model.num_slots()));
  }
  slots_.resize(static_cast<std::size_t>(count));
}

void DecodeEngine::admit(std::unique_ptr<SequenceDecoder> decoder) {
  const auto slot =
      std::ranges::find_if(slots_, [](const Slot& each) { return each.decoder == nullptr; });
  expect(slot != slots_.end(), "a sequence is admitted without a free slot");
  if (decoder->max_positions() > model_.slot_capacity()) {
    throw DataError(
        fmt::format("prompt {} needs {} positions (prompt and new tokens), a cache slot holds "
                    "{}; shorten the "
                    "prompt, lower max_new_tokens or raise the slot capacity",
                    decoder->id(), decoder->max_positions(), model_.slot_capacity()));
  }
  if (decoder->max_branch_rows() > model_.branch_rows()) {
    throw DataError(fmt::format(
        "prompt {} needs {} cache rows for alternative drafts, a slot has {}; lower block_size or "
        "verification_size",
        decoder->id(), decoder->max_branch_rows(), model_.branch_rows()));
  }
  slot->decoder = std::move(decoder);
  if (model_.proposes()) {
    slot->decoder->use_proposals();
  }
  slot->forwarded = 0;
  slot->begun = false;
  slot->prefilling = true;
  slot->predictions.clear();
  slot->text.clear();
  ++running_;
  const SamplingOptions& sampling = slot->decoder->sampling();
  if (sampling.penalises()) {
    slot->text.reserve(static_cast<std::size_t>(slot->decoder->max_positions()));
  }
  waiting_.push_back(static_cast<std::size_t>(slot - slots_.begin()));
  begin_waiting();
}

/// Begins sequences in order: overtaking would let short ones starve a long one.
void DecodeEngine::begin_waiting() {
  while (!waiting_.empty()) {
    const std::size_t index = waiting_.front();
    Slot& slot = slots_[index];
    if (!model_.reserve(static_cast<std::int32_t>(index), slot.decoder->max_positions(),
                        slot.decoder->max_branch_rows())) {
      return;
    }
    slot.begun = true;
    sampling_ += slot.decoder->sampling().greedy() ? 0 : 1;
    waiting_.pop_front();
  }
}

void DecodeEngine::step() {
  expect(running_ > 0, "a step without sequences");
  begin_waiting();
  expect(waiting_.size() < running_, "the cache is taken by sequences that are not this engine's");
  assemble_rows();
  forward_rows();
  hand_back();
  propose();
  note_progress();
}

std::optional<DecodeResult> DecodeEngine::take_finished() {
  if (finished_.empty()) {
    return std::nullopt;
  }
  DecodeResult result = std::move(finished_.front());
  finished_.pop_front();
  return result;
}

void DecodeEngine::clear() {
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].decoder && slots_[index].begun) {
      model_.release(static_cast<std::int32_t>(index));
    }
    slots_[index].decoder.reset();
  }
  requests_.clear();
  choices_wanted_ = 1;
  waiting_.clear();
  running_ = 0;
  sampling_ = 0;
  finished_.clear();
}

void DecodeEngine::assemble_rows() {
  rows_.clear();
  outputs_ = 0;
  prefill_rows_ = 0;
  for (Slot& slot : slots_) {
    slot.rows = 0;
    slot.branch_rows = 0;
    if (slot.decoder && !slot.prefilling) {
      slot.branches.clear();
      slot.end = slot.decoder->kv_length();
    }
  }
  // Rows that draft come together, so that their additional products are few.
  for (const bool drafting : {false, true}) {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].decoder && !slots_[index].prefilling) {
        append_branches(index, drafting);
      }
    }
  }
  const std::size_t room = kStepRows - std::min(kStepRows, rows_.size());
  std::size_t budget = std::max(room, kMinimumPrefillRows);
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].decoder && slots_[index].begun && slots_[index].prefilling) {
      append_prompt(index, budget);
      budget -= slots_[index].rows;
      prefill_rows_ += slots_[index].rows;
    }
  }
}

void DecodeEngine::append_prompt(std::size_t slot_index, std::size_t limit) {
  Slot& slot = slots_[slot_index];
  const auto pending = slot.decoder->pending();
  expect(pending.size() == 1, "a prompt is one branch");
  const DraftBranch& prompt = pending.front();
  slot.rows = std::min(prompt.tokens.size() - slot.forwarded, limit);
  slot.branches.assign(
      1, {.outputs = prompt.tokens.size() - prompt.first_output, .first_row = rows_.size()});
  append_rows(prompt, {.slot = static_cast<std::int32_t>(slot_index)}, slot.forwarded,
              slot.forwarded + slot.rows);
}

void DecodeEngine::append_branches(std::size_t slot_index, bool drafting) {
  Slot& slot = slots_[slot_index];
  const auto pending = slot.decoder->pending();
  expect(!pending.empty(), "an unfinished decoder has nothing to forward");
  for (const DraftBranch& branch : pending) {
    if (branch.drafts != drafting) {
      continue;
    }
    expect(drafting || &branch == &pending[slot.branches.size()],
           "a branch that drafts is not the last");
    const auto size = static_cast<std::int64_t>(branch.tokens.size());
    PlacedBranch placed{.first_position = branch.first_position,
                        .outputs = branch.tokens.size() - branch.first_output,
                        .first_row = rows_.size()};
    CacheRow place{.slot = static_cast<std::int32_t>(slot_index)};
    if (branch.alternative) {
      expect(branch.first_position >= 0 && branch.first_position <= slot.end,
             "an alternative begins behind the sequence's draft");
      placed.fork_row = model_.slot_capacity() + slot.branch_rows;
      place.fork = static_cast<std::int32_t>(branch.first_position);
      place.fork_row = static_cast<std::int32_t>(placed.fork_row);
      slot.branch_rows += size;
    } else {
      expect(branch.first_position == slot.end && slot.branch_rows == 0, "a draft leaves a gap");
      slot.end += size;
    }
    expect(branch.first_position + size <= model_.slot_capacity() &&
               slot.branch_rows <= model_.branch_rows(),
           "a decoder ran past its own max_positions() or max_branch_rows()");
    slot.branches.push_back(placed);
    append_rows(branch, place, 0, branch.tokens.size());
    slot.rows += branch.tokens.size();
  }
}

/// Appends tokens [begin, end) of a branch. `place`: the place of its first token, position unset.
void DecodeEngine::append_rows(const DraftBranch& branch, CacheRow place, std::size_t begin,
                               std::size_t end) {
  Slot& slot = slots_[static_cast<std::size_t>(place.slot)];
  if (place.fork_row == 0 && slot.decoder->sampling().penalises()) {
    slot.text.resize(static_cast<std::size_t>(branch.first_position) + begin);
    slot.text.insert(slot.text.end(), branch.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                     branch.tokens.begin() + static_cast<std::ptrdiff_t>(end));
  }
  const bool proposes = model_.proposes() && slot.decoder->wanted_proposals().has_value();
  for (std::size_t i = begin; i < end; ++i) {
    const bool wants_output = i >= branch.first_output;
    place.position =
        static_cast<std::int32_t>(branch.first_position + static_cast<std::int64_t>(i));
    rows_.push_back({.token = branch.tokens[i],
                     .place = place,
                     .wants_output = wants_output,
                     .drafts = branch.drafts,
                     .proposes = proposes});
    outputs_ += wants_output ? 1 : 0;
  }
}

void DecodeEngine::forward_rows() {
  predictions_.resize(outputs_);
  const auto begin = std::chrono::steady_clock::now();
  if (sampling_ == 0) {
    model_.predict(rows_, predictions_);
  } else {
    describe_choices();
    model_.predict_sampled(rows_, choices_, predictions_);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const double prefill_share =
      static_cast<double>(prefill_rows_) / static_cast<double>(rows_.size());
  statistics_.steps += 1;
  statistics_.rows += static_cast<std::int64_t>(rows_.size());
  statistics_.prefill_rows += static_cast<std::int64_t>(prefill_rows_);
  statistics_.prefill_seconds += elapsed.count() * prefill_share;
  statistics_.decode_seconds += elapsed.count() * (1.0 - prefill_share);
}

void DecodeEngine::describe_choices() {
  row_tokens_.clear();
  for (const DecodeRow& row : rows_) {
    row_tokens_.push_back(row.token);
  }
  choices_.clear();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].wants_output) {
      choices_.push_back(choice_of(row));
    }
  }
}

SampledRow DecodeEngine::choice_of(std::size_t row_index) const {
  const CacheRow& place = rows_[row_index].place;
  const Slot& slot = slots_[static_cast<std::size_t>(place.slot)];
  SampledRow choice{.options = slot.decoder->sampling(),
                    .request = slot.decoder->id(),
                    .position = place.position + 1};
  if (choice.options.penalises()) {
    // The row sees its sequence up to itself, or up to its fork and then its alternative.
    const bool alternative = place.fork_row != 0;
    const std::int32_t shared = alternative ? place.fork : place.position + 1;
    const std::int32_t own = alternative ? place.position + 1 - place.fork : 0;
    choice.text = std::span(slot.text).first(static_cast<std::size_t>(shared));
    choice.alternative =
        std::span(row_tokens_).first(row_index + 1).last(static_cast<std::size_t>(own));
  }
  return choice;
}

void DecodeEngine::hand_back() {
  std::size_t output = 0;
  for (const DecodeRow& row : rows_) {
    if (row.wants_output) {
      slots_[static_cast<std::size_t>(row.place.slot)].predictions.push_back(
          predictions_[output++]);
    }
  }
  kept_.clear();
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].decoder && slots_[index].begun) {
      advance(index);
    }
  }
  if (!kept_.empty()) {
    model_.keep_branches(kept_);
  }
}

void DecodeEngine::advance(std::size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const auto row = [](std::size_t index) { return static_cast<std::int64_t>(index); };
  const std::int64_t prompt_position = row(slot.forwarded);
  const std::int64_t first_row = row(slot.branches.front().first_row);
  const RowRange prompt_rows{first_row, first_row + row(slot.rows)};
  if (slot.prefilling) {
    slot.forwarded += slot.rows;
    if (slot.forwarded < slot.decoder->pending().front().tokens.size()) {
      ask(slot_index, prompt_position, {prompt_rows, {}});
      return;
    }
  }
  outcomes_.clear();
  std::span<const TokenId> left = slot.predictions;
  for (const PlacedBranch& branch : slot.branches) {
    outcomes_.push_back({left.first(branch.outputs)});
    left = left.subspan(branch.outputs);
  }
  const std::int64_t known = slot.decoder->kv_length();
  if (observer_ != nullptr) {
    observer_->before_advance(*slot.decoder);
  }
  const Commit commit = slot.decoder->advance(outcomes_);
  if (observer_ != nullptr) {
    observer_->after_advance(*slot.decoder, commit);
  }
  if (!slot.prefilling) {
    statistics_.tokens += slot.decoder->kv_length() - known;
    statistics_.forwards += 1;
  }
  const bool prefilled = std::exchange(slot.prefilling, false);
  slot.predictions.clear();
  if (slot.decoder->finished()) {
    const auto finished = std::move(slot.decoder);
    --running_;
    sampling_ -= finished->sampling().greedy() ? 0 : 1;
    model_.release(static_cast<std::int32_t>(slot_index));
    finished_.push_back(finished->take_result());
    return;
  }
  const PlacedBranch& chosen = slot.branches.at(commit.branch);
  if (prefilled) {
    ask(slot_index, prompt_position, {prompt_rows, {}});
  } else {
    // The sequence's own rows up to where an alternative forks, then the alternative's.
    const std::int64_t end = slot.decoder->kv_length();
    const std::int64_t fork = chosen.fork_row != 0 ? std::min(chosen.first_position, end) : end;
    const std::int64_t branch_row = row(chosen.first_row);
    ask(slot_index, known,
        {RowRange{first_row, first_row + fork - known},
         RowRange{branch_row, branch_row + end - fork}});
  }
  for (std::int64_t i = 0; chosen.fork_row != 0 && i < commit.rows; ++i) {
    kept_.push_back({.slot = static_cast<std::int32_t>(slot_index),
                     .from = static_cast<std::int32_t>(chosen.fork_row + i),
                     .to = static_cast<std::int32_t>(chosen.first_position + i)});
  }
  if (chosen.fork_row != 0 && !slot.text.empty()) {
    slot.text.resize(static_cast<std::size_t>(chosen.first_position));
    for (std::int64_t i = 0; i < commit.rows; ++i) {
      slot.text.push_back(rows_[chosen.first_row + static_cast<std::size_t>(i)].token);
    }
  }
}

/// Notes `rows` of the last predict() for a sequence that uses proposals.
void DecodeEngine::ask(std::size_t slot_index, std::int64_t first_position,
                       std::array<RowRange, 2> rows) {
  const Slot& slot = slots_[slot_index];
  const auto wanted = model_.proposes() ? slot.decoder->wanted_proposals() : std::nullopt;
  if (wanted) {
    requests_.push_back({.slot = static_cast<std::int32_t>(slot_index),
                         .first_position = first_position,
                         .rows = rows,
                         .newest = wanted->newest,
                         .count = wanted->count});
    choices_wanted_ = std::max(choices_wanted_, wanted->choices);
  }
}

void DecodeEngine::propose() {
  std::int64_t count = 0;
  for (const ProposalRequest& request : requests_) {
    count += request.count;
  }
  const auto choices = static_cast<std::size_t>(std::exchange(choices_wanted_, 1));
  proposals_.resize(static_cast<std::size_t>(count) * choices);
  if (!requests_.empty()) {
    model_.propose(requests_, static_cast<std::int64_t>(choices), proposals_);
  }
  std::span<const LikelyToken> left = proposals_;
  for (const ProposalRequest& request : requests_) {
    const auto own = left.first(static_cast<std::size_t>(request.count) * choices);
    left = left.subspan(own.size());
    if (Slot& slot = slots_[static_cast<std::size_t>(request.slot)]; !slot.prefilling) {
      slot.decoder->take_proposals(own, choices);
    }
  }
  requests_.clear();
}

std::vector<DecodeResult> decode_all(DecodeEngine& engine,
                                     std::vector<std::unique_ptr<SequenceDecoder>> decoders) {
  std::vector<DecodeResult> results;
  std::size_t next = 0;
  while (true) {
    while (engine.free_slots() > 0 && next < decoders.size()) {
      engine.admit(std::move(decoders[next++]));
    }
    if (engine.running() == 0) {
      return results;
    }
    engine.step();
    while (auto result = engine.take_finished()) {
      results.push_back(std::move(*result));
    }
  }
}

}  // namespace jforge
