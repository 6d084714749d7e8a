#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <sstream>

#include "checkpoints/drafter_files.h"
#include "checkpoints/jacobi_decoding.h"
#include "checkpoints/tokenizer_fit.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "launch/commands/commands.h"
#include "launch/commands/decode_display.h"
#include "launch/commands/loaded_model.h"
#include "model/decoding/decode_engine.h"
#include "model/decoding/decoding_method.h"
#include "model/decoding/pass_recorder.h"
#include "model/decoding/sequence_decoder.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"

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

/// Parses all but true, false and whole numbers as text.
TemplateArguments parse_template_arguments(const std::vector<std::string>& given) {
  constexpr const char* kOption = "--template-argument";
  TemplateArguments arguments;
  for (const std::string& assignment : given) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) {
      throw ConfigError(fmt::format("{} {}: expected NAME=VALUE", kOption, assignment));
    }
    const std::string value = assignment.substr(equals + 1);
    TemplateArguments::mapped_type& argument = arguments[assignment.substr(0, equals)];
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (value == "true" || value == "false") {
      argument = value == "true";
    } else if (error == std::errc() && end == value.data() + value.size()) {
      argument = number;
    } else {
      argument = value;
    }
  }
  expect_template_arguments(kOption, arguments);
  return arguments;
}

class PrintedAnswer {
 public:
  explicit PrintedAnswer(const BytePairTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(std::span<const TokenId> tokens) {
    printed_ += tokens.size();
    print(stream_.add(tokenizer_.decode(tokens, true)));
  }
  /// Prints the tokens that add() has not seen; `tokens` are all of the answer's.
  void finish(std::span<const TokenId> tokens) {
    add(tokens.subspan(printed_));
    print(stream_.finish() + "\n");
  }

 private:
  static void print(const std::string& text) {
    fmt::print("{}", text);
    if (std::fflush(stdout) != 0) {
      throw EnvironmentError("standard output could not be written");
    }
  }

  const BytePairTokenizer& tokenizer_;
  TextStream stream_;
  std::size_t printed_ = 0;
};

/// See https://no-color.org.
bool shows_colours() {
  const char* refused = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (refused == nullptr || *refused == '\0');
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
    std::cout << fmt::format("{}\n", fmt::join(tokenizer.encode_alone(input), " "));
  }
  std::cout.flush();
  if (!std::cout) {
    throw EnvironmentError("standard output could not be written");
  }
  return ExitCode::ok;
}

ExitCode decode_command(const DecodeOptions& options) {
  const std::string name = !options.method.empty()      ? options.method
                           : has_drafter(options.model) ? "draft"
                                                        : "jacobi";
  std::int32_t block_size = options.block_size;
  if (name == "jacobi" || name.starts_with("draft")) {
    block_size = exported_block_size(options.model).value_or(block_size);
  }
  const DecodingSettings settings = command_settings(name, block_size, options.settings);
  const DecodingMethod method = make_decoding_method(name, settings, options.seed);
  const BytePairTokenizer tokenizer = BytePairTokenizer::load(options.model);
  std::vector<ChatMessage> messages;
  if (options.system) {
    messages.push_back({"system", *options.system});
  }
  messages.push_back({"user", options.prompt});
  const auto chat = ChatTemplate::load(
      options.model, {options.chatml, parse_template_arguments(options.template_arguments)});
  const std::string text = chat.render(messages, true);
  LoadedModel model(options.model, options.device);
  expect_tokenizer_fits(options.model, tokenizer, model.config);
  if (const auto problem = unstopped_turns(tokenizer, chat, model.config)) {
    log_warn("{}", *problem);
  }
  const DrafterSource* const adapter =
      drafter_for(method.name, method.need, model.drafter.get(), options.model);
  const DecodeRequest request{0, tokenizer.encode(text), options.max_new_tokens,
                              model.config.eos_ids, method.sampling};
  // Large enough for ar, too.
  const auto largest = method.make(request);
  const auto inference = model.inference(1, largest->max_positions(), options.decode_weights,
                                         largest->max_branch_rows(), adapter);
  const auto text_of = [&](TokenId token) { return tokenizer.decode({&token, 1}); };
  const auto decode = [&](const DecodingMethod& with, PassRecorder& recorder) {
    std::vector<std::unique_ptr<SequenceDecoder>> decoder;
    decoder.push_back(with.make(request));
    DecodeEngine engine(*inference, 1);
    engine.set_observer(&recorder);
    DecodeResult result = decode_all(engine, std::move(decoder)).at(0);
    return std::pair(std::move(result), engine.statistics().decode_seconds);
  };
  if (options.compare || !options.compare_svg.empty()) {
    const auto timed = [&](const DecodingMethod& with) {
      PassRecorder recorder;
      const DecodeResult result = decode(with, recorder).first;
      return TimedAnswer{with.name, recorder.rows(result.tokens), recorder.seconds()};
    };
    const DecodingMethod ar = make_decoding_method(kBaselineMethod, settings, options.seed);
    const auto shown = [&](TokenId token) { return tokenizer.decode({&token, 1}, true); };
    // The first run also loads the weights, so the second turn counts.
    TimedAnswer left;
    TimedAnswer right;
    for (int turn = 0; turn < 2; ++turn) {
      left = timed(ar);
      right = timed(method);
    }
    if (options.compare) {
      fmt::print("{}", comparison_text(left, right, shown, shows_colours()));
    }
    if (!options.compare_svg.empty()) {
      write_output(options.compare_svg, comparison_svg(left, right, shown));
    }
    return ExitCode::ok;
  }
  PrintedAnswer answer(tokenizer);
  PassRecorder recorder([&](std::span<const TokenId> known) {
    if (!options.trace) {  // A trace comes before the answer.
      answer.add(known);
    }
  });
  const auto [result, seconds] = decode(method, recorder);
  if (options.trace) {
    fmt::print("{}", trace_text(recorder.rows(result.tokens), text_of, shows_colours()));
  }
  answer.finish(result.tokens);
  const DecodingCost cost{
      .sequences = 1, .tokens = std::ssize(result.tokens), .forwards = result.forwards};
  fmt::print(stderr, "{} tokens, {} forwards, {:.2f} tokens per forward, {:.0f} tokens/s\n",
             cost.tokens, cost.forwards, cost.tokens_per_forward().value_or(0),
             static_cast<double>(cost.tokens - 1) / std::max(1e-9, seconds));
  return ExitCode::ok;
}

}  // namespace jforge
