#include "launch/shell/man_page.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <utility>

#include "launch/config/config_reference.h"

namespace jforge {

namespace {

/// A term and what it means.
using Term = std::pair<const char*, const char*>;

constexpr const char* kDescription =
    R"(Jacobi Forge turns an autoregressive language model into one that decodes several tokens per forward pass, and measures the result. From a Hugging Face model directory and a file of prompts it makes trajectories by Jacobi decoding, trains the model on them in rounds, exports it as a Hugging Face directory, and compares it with the model it came from: accuracy, tokens per forward pass (TPF), tokens per second.
.PP
One configuration file (TOML) describes a run.
.B jforge init
writes one to start from,
.B jforge run \-\-dry\-run
shows what a run would need. The same command, started again, continues a run that was stopped or killed.)";

// The program's own; those of the batch script stand at its beginning.
constexpr Term kEnvironment[] = {
    {"JFORGE_MPI_LIMIT_SECONDS",
     "How long MPI may take to start and to end before the job ends with exit code 70. "
     "Default: 600"},
    {"JFORGE_CHECK_COLLECTIVES",
     "With 1 for rank 0, all ranks compare every collective call before they enter it, and the "
     "first difference is reported"},
    {"OMP_NUM_THREADS", "Threads of each rank. The launch scripts set it"},
};

constexpr Term kFiles[] = {
    {"report.md", "Tables and figures of the run"},
    {"model/", "The trained model as a Hugging Face directory"},
    {"evaluation/summary.json", "Figures of each model, task and method"},
    {"run.json",
     "Whether the run goes on, is finished, was interrupted or failed, and how far it "
     "is; `jforge top` shows it"},
    {"metrics.jsonl", "Every optimizer step"},
    {"resolved_config.toml", "The configuration with all defaults and overrides"},
    {"identity.json", "The keys that decide what the run computes, compared at every start"},
    {"logs/", "The log of each rank"},
};

constexpr Term kExamples[] = {
    {"jforge init my.toml", "Write a configuration to start from."},
    {"jforge run my.toml --dry-run", "Show memory, disk, steps and time; start nothing."},
    {"mpirun -n 2 jforge run my.toml --set train.learning_rate=2e-5",
     "Run it on two ranks. The same command again continues."},
    {"jforge top results/runs/my-model", "Show how far it is."},
    {"source <(jforge completion bash)", "Complete commands, options and keys in this shell."},
};

// One character of UTF-8 at text[at] as a number; moves `at` behind it.
std::uint32_t next_code_point(const std::string& text, std::size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  if (first < 0x80) {
    return first;
  }
  std::uint32_t code = first & (first >= 0xf0 ? 0x07U : first >= 0xe0 ? 0x0fU : 0x1fU);
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U) {
    code = code << 6U | (static_cast<unsigned char>(text[at++]) & 0x3fU);
  }
  return code;
}

// Plain text for roff. What is typed (`literal`) must come out as the same ASCII signs.
std::string roff(const std::string& text, bool literal) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t code = next_code_point(text, at);
    if (code >= 0x80) {
      out += fmt::format("\\[u{:04X}]", code);
    } else if (code == '\\') {
      out += "\\[rs]";
    } else if (literal && code == '-') {
      out += "\\-";
    } else if (literal && code == '\'') {
      out += "\\[aq]";
    } else if (literal && code == '`') {
      out += "\\[ga]";
    } else if (literal && code == '^') {
      out += "\\[ha]";
    } else if (literal && code == '~') {
      out += "\\[ti]";
    } else if (literal && code == '|') {
      out += "|\\:";  // A list of names may be longer than a line.
    } else {
      out += static_cast<char>(code);
    }
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text, true) + "\\fP"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text, true) + "\\fP"; }

// One line of Markdown: `code` in bold. A control character at its beginning is none.
std::string prose(const std::string& markdown) {
  std::string out = "\\&";
  bool literal = false;
  for (std::size_t from = 0; from <= markdown.size();) {
    const std::size_t to = std::min(markdown.find('`', from), markdown.size());
    const std::string part = markdown.substr(from, to - from);
    out += literal ? bold(part) : roff(part, false);
    literal = !literal;
    from = to + 1;
  }
  return out;
}

std::string terms(const auto& list) {
  std::string text;
  for (const auto& [term, meaning] : list) {
    text += fmt::format(".TP\n{}\n{}\n", bold(term), prose(meaning));
  }
  return text;
}

std::string upper(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

std::string option_entry(const OptionDescription& option) {
  std::string head;
  for (const std::string& name : option.names) {
    head += (head.empty() ? "" : ", ") + bold(name);
  }
  if (option.takes_value()) {
    head += " " + italic(option.placeholder);
  }
  // Words that the placeholder does not list itself.
  std::string more;
  if (!option.words.empty() && option.placeholder.find(option.words.front()) == std::string::npos) {
    more += fmt::format(" (`{}`)", fmt::join(option.words, "`, `"));
  }
  more += option.required ? ". Required" : "";
  more += option.default_text.empty() ? "" : ". Default: `" + option.default_text + "`";
  return fmt::format(".TP\n{}\n{}\n", head, prose(option.help + more));
}

std::string synopsis(const CommandDescription& command) {
  std::string line = bold(path_text(command));
  line += command.commands.empty() ? "" : " " + italic("COMMAND");
  for (const OptionDescription& option : command.options) {
    if (option.required) {
      line += " " + bold(option.names.back()) + " " + italic(option.placeholder);
    }
  }
  line += " [" + italic("OPTIONS") + "]";
  for (const OptionDescription& argument : command.arguments) {
    const std::string name = italic(upper(argument.names.back()));
    line += argument.required ? " " + name : " [" + name + "]";
  }
  return line;
}

std::string command_entry(const CommandDescription& command) {
  std::string text = fmt::format(".SS {}\n{}\n", path_text(command), synopsis(command));
  text += fmt::format(".PP\n{}.\n", prose(command.help));
  for (const OptionDescription& argument : command.arguments) {
    OptionDescription shown = argument;
    shown.names.back() = upper(shown.names.back());
    // Its own name says it.
    shown.placeholder = shown.words.empty() ? "" : shown.placeholder;
    text += option_entry(shown);
  }
  for (const OptionDescription& option : command.options) {
    text += option_entry(option);
  }
  return text;
}

std::string commands_section(const CommandDescription& program) {
  std::string text;
  std::string group;
  for (const CommandDescription* command : all_commands(program)) {
    if (command->path.size() == 2 && command->group != group) {
      group = command->group;
      text += fmt::format(".SH {}\n", upper(group));
    }
    text += command->path.size() > 1 ? command_entry(*command) : "";
  }
  return text;
}

std::string keys_section() {
  std::string text =
      ".SH CONFIGURATION\n"
      "Every key of the TOML file, as it is written behind \\fB\\-\\-set\\fP. Keys marked "
      "\\fIidentity\\fP decide what a run computes: a run does not continue with another value "
      "unless \\fB\\-\\-accept\\-change\\fP names the key. Rounds are counted from 1.\n";
  std::string section;
  const auto add = [&](const ConfigKey& key) {
    const std::string of = key.path.substr(0, key.path.find('.'));
    if (of != section) {
      section = of;
      text += fmt::format(".SS {}\n", of == "rounds" ? "[[rounds]]" : "[" + of + "]");
    }
    std::string meaning = key.meaning;
    meaning += key.default_text ? ". Default: `" + *key.default_text + "`" : "";
    text += fmt::format(".TP\n{}{}\n{}\n", bold(key.path), key.identity ? " \\fIidentity\\fP" : "",
                        prose(meaning));
  };
  for (const ConfigKey& key : config_keys(ConfigFor::run)) {
    add(key);
  }
  for (const ConfigFor command : {ConfigFor::pretrain, ConfigFor::finetune}) {
    for (const ConfigKey& key : config_keys(command)) {
      if (key.path.starts_with("pretrain.") || key.path.starts_with("finetune.")) {
        add(key);
      }
    }
  }
  return text;
}

}  // namespace

const std::vector<ExitCodeMeaning>& exit_code_meanings() {
  static const std::vector<ExitCodeMeaning> meanings{
      {ExitCode::ok, "done"},
      {ExitCode::usage, "the command line or the configuration is wrong"},
      {ExitCode::input_data,
       "the input is wrong: prompts, model files, checkpoints, benchmark files"},
      {ExitCode::environment, "the environment lacks something: MPI, disk, permissions, a program"},
      {ExitCode::numerical,
       "numerical failure: a NaN or an infinity, state that changed in memory, too many spikes in "
       "a row, or text that collapsed"},
      {ExitCode::internal, "a bug, or a rank that hung or went silent"},
      {ExitCode::interrupted,
       "interrupted; everything committed is safe, run the same command to continue"},
  };
  return meanings;
}

std::string man_page(const CommandDescription& program) {
  std::string exits;
  for (const auto& [code, meaning] : exit_code_meanings()) {
    exits +=
        fmt::format(".TP\n{}\n{}\n", bold(std::to_string(static_cast<int>(code))), prose(meaning));
  }
  std::string options;
  for (const OptionDescription& option : program.options) {
    options += option_entry(option);
  }
  // Ragged lines without hyphens: long keys and options leave no room to stretch.
  return ".\\\" Made by `jforge man`.\n"
         ".TH JFORGE 1 \"\" \"jforge " JFORGE_VERSION
         "\" \"User Commands\"\n.ad l\n.nh\n"
         ".SH NAME\njforge \\- turns an autoregressive language model into a parallel decoder\n"
         ".SH SYNOPSIS\n" +
         synopsis(program) + "\n.SH DESCRIPTION\n" + kDescription + "\n.SH OPTIONS\n" + options +
         commands_section(program) + keys_section() + ".SH EXIT STATUS\n" + exits +
         ".SH ENVIRONMENT\n" + terms(kEnvironment) +
         ".SH FILES\nThe directory that \\fBrun.directory\\fP names holds\n" + terms(kFiles) +
         ".SH EXAMPLES\n" + terms(kExamples) +
         ".SH SEE ALSO\n\\fBmpirun\\fP(1)\n.PP\n\\fI/usr/share/doc/jforge\\fP, "
         "\\fI/usr/share/jforge/launch\\fP (scripts and example configurations of the package)\n";
}

}  // namespace jforge
