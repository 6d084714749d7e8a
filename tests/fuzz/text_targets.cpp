#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoints/checkpoint_manifest.h"
#include "data/tasks/code/code_tasks.h"
#include "data/tasks/code/json_tree.h"
#include "data/tasks/math/answer_number.h"
#include "data/tasks/math/math_answer.h"
#include "data/tokenizer/unicode.h"
#include "launch/config/toml_config.h"
#include "runtime/bounded_json.h"
#include "runtime/content_hash.h"
#include "tests/fuzz/fuzz_targets.h"
#include "workers/evaluate/sandbox/harness_channel.h"
#include "workers/protocol/command.h"
#include "workers/protocol/messages.h"

namespace jforge {

namespace {

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Splits at the first newline.
std::pair<std::string_view, std::string_view> halves(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  const std::size_t newline = std::min(text.find('\n'), text.size());
  return {text.substr(0, newline), text.substr(std::min(newline + 1, text.size()))};
}

void demand(bool holds, const char* what) {
  if (!holds) {
    throw std::logic_error(what);
  }
}

}  // namespace

void fuzz_toml_config(std::span<const std::uint8_t> bytes) {
  const std::string text(as_text(bytes));
  TomlDocument document(text, "job.toml");
  document.set("run.directory=" + text.substr(0, 100));
  std::string directory;
  double rate = 0;
  std::optional<std::int64_t> limit;
  std::vector<std::string> files;
  std::vector<std::int64_t> blocks(document.array_size("rounds"));
  FieldList list;
  list.in("run");
  list.add("directory", directory, FieldKind::operational, "");
  list.in("train");
  list.add("learning_rate", rate, FieldKind::identity, "");
  list.add("limit", limit, FieldKind::identity, "");
  list.in("prompts");
  list.add("files", files, FieldKind::identity, "");
  for (std::size_t round = 0; round < blocks.size(); ++round) {
    list.in(fmt::format("rounds.{}", round));
    list.add("block_size", blocks[round], FieldKind::identity, "");
  }
  document.apply(list.take());
}

void fuzz_manifest(std::span<const std::uint8_t> bytes) {
  const std::string text(as_text(bytes));
  // With a matching checksum, to reach the code after its check.
  nlohmann::json document = try_bounded_json(text);
  if (document.is_object()) {
    document.erase("checksum");
    document["checksum"] = hash_hex(hash64(std::string_view(document.dump())));
    const auto manifest = CheckpointManifest::from_json(document.dump(), "manifest");
    demand(CheckpointManifest::from_json(manifest.to_json(), "again") == manifest,
           "a manifest that does not read back");
  }
  static_cast<void>(CheckpointManifest::from_json(text, "manifest"));
}

void fuzz_evalplus_json(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  if (const auto node = parse_json(text)) {
    demand(node->raw.data() >= text.data() &&
               node->raw.data() + node->raw.size() <= text.data() + text.size(),
           "a value outside the text");
    if (!first_invalid_utf8(text)) {
      static_cast<void>(python_text_literal(text));
    }
  }
}

void fuzz_math_answers(std::span<const std::uint8_t> bytes) {
  const auto [gold, answer] = halves(bytes);
  for (const MathAnswerForm form : {MathAnswerForm::boxed, MathAnswerForm::minerva}) {
    static_cast<void>(find_math_answer(answer, form));
  }
  static_cast<void>(canonical_number(answer));
  static_cast<void>(leading_number(answer));
  static_cast<void>(last_number(answer));
  demand(string_equal(gold, answer) == string_equal(answer, gold),
         "equality that depends on the order");
  demand(minerva_equal(answer, answer), "an answer that differs from itself");
}

void fuzz_harness_frames(std::span<const std::uint8_t> bytes) {
  std::array<int, 2> replies{};
  std::array<int, 2> commands{};
  constexpr std::size_t kPipeBytes = 60'000;
  if (pipe2(replies.data(), O_CLOEXEC | O_NONBLOCK) != 0 ||
      pipe2(commands.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::runtime_error("no pipe");
  }
  const auto left = bytes.first(std::min(bytes.size(), kPipeBytes));
  const bool written = write(replies[1], left.data(), left.size()) == std::ssize(left);
  close(replies[1]);
  constexpr std::size_t kPayload = 4096;
  HarnessChannel channel(commands[1], replies[0], kPayload);
  const auto deadline = HarnessChannel::Clock::now() + std::chrono::seconds(5);
  HarnessFrame frame;
  std::size_t taken = 0;
  while (channel.receive(frame, deadline) == ChannelOutcome::ok) {
    taken += 5 + frame.payload.size();
    demand(frame.payload.size() <= kPayload, "a frame above the limit");
  }
  demand(channel.send('C', "x", "y", deadline) != ChannelOutcome::ok, "sent to nobody's reply");
  for (const int descriptor : {replies[0], commands[0], commands[1]}) {
    close(descriptor);
  }
  demand(written && taken <= left.size(), "more frames than bytes");
}

void fuzz_control_messages(std::span<const std::uint8_t> bytes) {
  const std::span<const std::byte> message = std::as_bytes(bytes);
  const auto attempt = [](const auto& decode) {
    try {
      decode();
    } catch (const CommError&) {
      // It may be a message of another kind.
    }
  };
  attempt([&] {
    const auto encoded = encode(decode_rank_message(message));
    demand(encode(decode_rank_message(encoded)) == encoded, "a message that changes");
  });
  attempt([&] {
    const auto encoded = encode(decode_coordinator_message(message));
    demand(encode(decode_coordinator_message(encoded)) == encoded, "a message that changes");
  });
  attempt([&] {
    const Command command = parse_command(std::string(as_text(bytes)));
    demand(parse_command(encode(command)) == command, "a command that changes");
  });
}

}  // namespace jforge
