#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include "checkpoints/tokenizer_fit.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/loaded_model.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/sequence_decoder.h"
#include "workers/evaluate/decoding_method.h"

namespace jforge {

namespace {

std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::istringstream stream(text);
  std::string word;
  while (stream >> word) {
    std::size_t used = 0;
    long value = -1;
    try {
      value = std::stol(word, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != word.size() || value < 0 || value > std::numeric_limits<TokenId>::max()) {
      throw DataError("standard input: \"" + word + "\" is not a token id");
    }
    ids.push_back(static_cast<TokenId>(value));
  }
  return ids;
}

// A state is shown on one line.
std::string on_one_line(const std::string& text) {
  std::string shown;
  for (const char c : text) {
    shown += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return shown;
}

// States of one block, converged tokens in green on a terminal and between brackets elsewhere.
void print_trace(const BytePairTokenizer& tokenizer, const TrajectoryBlock& block,
                 std::size_t number, std::int32_t block_size) {
  const bool colours = ::isatty(STDOUT_FILENO) != 0;
  const auto size = static_cast<std::size_t>(block_size);
  const std::span<const TokenId> states(block.states);
  const std::span<const TokenId> fixed = states.last(size);
  fmt::print("block {}\n", number);
  for (std::size_t begin = 0; begin < states.size(); begin += size) {
    const std::span<const TokenId> state = states.subspan(begin, size);
    std::size_t converged = 0;
    while (converged < size && state[converged] == fixed[converged]) {
      ++converged;
    }
    const std::string done = on_one_line(tokenizer.decode(state.first(converged)));
    const std::string draft = on_one_line(tokenizer.decode(state.subspan(converged)));
    if (colours) {
      fmt::print("  {:3} {}{}\n", begin / size,
                 fmt::format(fmt::fg(fmt::terminal_color::green), "{}", done),
                 fmt::format(fmt::emphasis::faint, "{}", draft));
    } else {
      fmt::print("  {:3} [{}]{}\n", begin / size, done, draft);
    }
  }
}

// Trajectories as generation makes them.
JacobiOptions trace_options(const DecodeOptions& options) {
  return {.block_size = options.block_size,
          .seed = options.seed,
          .complete_blocks = true,
          .record_states = true};
}

}  // namespace

ExitCode tokenize_command(const TokenizeOptions& options) {
  const BytePairTokenizer tokenizer = BytePairTokenizer::load(options.model);
  const std::string input((std::istreambuf_iterator<char>(std::cin)),
                          std::istreambuf_iterator<char>());
  if (options.decode) {
    const std::string text = tokenizer.decode(parse_ids(input));
    std::cout.write(text.data(), static_cast<std::streamsize>(text.size()));
  } else {
    std::cout << fmt::format("{}\n", fmt::join(tokenizer.encode(input), " "));
  }
  std::cout.flush();
  if (!std::cout) {
    throw EnvironmentError("standard output could not be written");
  }
  return ExitCode::ok;
}

ExitCode decode_command(const DecodeOptions& options) {
  const DecodingSettings settings = command_settings(options.block_size, options.settings);
  const DecodingMethod method = make_decoding_method(options.method, settings, options.seed);
  if (options.trace && (options.method != "jacobi" || !options.settings.empty())) {
    throw ConfigError("--trace shows jacobi's trajectories; give --block-size and no other method");
  }
  const BytePairTokenizer tokenizer = BytePairTokenizer::load(options.model);
  std::vector<ChatMessage> messages;
  if (options.system) {
    messages.push_back({"system", *options.system});
  }
  messages.push_back({"user", options.prompt});
  const std::string text = ChatTemplate::load(options.model).render(messages, true);
  LoadedModel model(options.model, options.device);
  expect_tokenizer_fits(options.model, tokenizer, model.config);
  DecodeRequest request{0, tokenizer.encode(text), options.max_new_tokens, model.config.eos_ids,
                        method.sampling};
  std::vector<std::unique_ptr<SequenceDecoder>> decoder;
  decoder.push_back(options.trace ? make_jacobi_decoder(std::move(request), trace_options(options))
                                  : method.make(std::move(request)));
  const auto inference = model.inference(1, decoder[0]->max_positions(), options.decode_weights,
                                         decoder[0]->max_branch_rows());
  DecodeEngine engine(*inference, 1);
  const DecodeResult result = decode_all(engine, std::move(decoder)).at(0);
  for (std::size_t i = 0; i < result.blocks.size(); ++i) {
    print_trace(tokenizer, result.blocks[i], i, options.block_size);
  }
  fmt::print("{}\n", tokenizer.decode(result.tokens, true));
  // A trace's forwards are for whole blocks.
  const DecodingCost cost{.sequences = 1,
                          .tokens = options.trace ? std::ssize(result.blocks) * options.block_size
                                                  : std::ssize(result.tokens),
                          .forwards = result.forwards};
  fmt::print(
      stderr, "{} tokens{}, {} forwards, {:.2f} tokens per forward, {:.0f} tokens/s\n", cost.tokens,
      options.trace ? " in whole blocks" : "", cost.forwards, cost.tokens_per_forward().value_or(0),
      static_cast<double>(cost.tokens - 1) / std::max(1e-9, engine.statistics().decode_seconds));
  return ExitCode::ok;
}

}  // namespace jforge
