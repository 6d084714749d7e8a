#include "launch/shell/man_page.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace jforge {

namespace {

using Term = std::pair<const char*, const char*>;

// Same words as in docs/commands.md; a test compares them.
constexpr Term kExitCodes[] = {
    {"0", "done"},
    {"2", "the command line or the configuration is wrong"},
    {"3", "the input is wrong: prompts, model files, checkpoints, benchmark files"},
    {"4", "the environment lacks something: MPI, disk, permissions, a program"},
    {"5",
     "numerical failure: a NaN or an infinity, state that changed in memory, too many spikes in a "
     "row, or text that collapsed"},
    {"70", "a bug, or a rank that hung or went silent"},
    {"75", "interrupted; everything committed is safe, run the same command to continue"},
};

constexpr Term kEnvironment[] = {
    {"JFORGE_MPI_LIMIT_SECONDS", "How long MPI may take to start or to end (600)"},
    {"JFORGE_CPU",
     "Widest instructions that the CPU kernels use: avx2, avx512, avx512_bf16 or amx_bf16"},
    {"JFORGE_CHECK_COLLECTIVES", "If 1 on rank 0, ranks compare every collective call first"},
    {"SLURM_JOB_END_TIME", "Seconds since 1970; used if --stop-at is not given"},
};

constexpr Term kFiles[] = {
    {"report.md", "Tables and figures of the run"},
    {"model/", "The trained model as a Hugging Face directory"},
    {"evaluation/summary.json", "Figures of each model, task and method"},
    {"run.json", "State and progress of the run, which jforge top shows"},
    {"metrics.jsonl", "Every optimizer step"},
    {"logs/", "The log of each rank"},
};

// Makes groff print the same ASCII characters, and permits a line break after a |.
std::string roff(const std::string& text) {
  static const std::map<char, const char*> escapes{
      {'\\', "\\[rs]"}, {'-', "\\-"},    {'\'', "\\[aq]"}, {'`', "\\[ga]"},
      {'^', "\\[ha]"},  {'~', "\\[ti]"}, {'|', "|\\:"}};
  std::string out;
  for (const char c : text) {
    const auto escape = escapes.find(c);
    out += escape == escapes.end() ? std::string(1, c) : escape->second;
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fP"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fP"; }

std::string entry(const std::string& head, const std::string& meaning) {
  return ".TP\n" + head + "\n" + roff(meaning) + "\n";
}

std::string terms(const auto& list) {
  std::string text;
  for (const auto& [name, meaning] : list) {
    text += entry(bold(name), meaning);
  }
  return text;
}

std::string option_entry(const OptionDescription& option) {
  std::string head = bold(fmt::format("{}", fmt::join(option.names, ", ")));
  head += option.takes_value() ? " " + italic(option.placeholder) : "";
  std::string meaning = option.help;
  if (option.placeholder == "TASK") {
    meaning += fmt::format(" ({})", fmt::join(option.words, ", "));
  }
  meaning += option.required ? ". Required" : "";
  meaning += option.default_text.empty() ? "" : ". Default: " + option.default_text;
  return entry(head, meaning);
}

std::string command_section(const CommandDescription& command) {
  std::string usage = bold(path_text(command)) + " [" + italic("OPTIONS") + "]";
  std::string entries;
  for (const OptionDescription& argument : command.arguments) {
    const std::string name = italic(argument.names.back());
    usage += argument.required ? " " + name : " [" + name + "]";
    entries += option_entry(argument);
  }
  for (const OptionDescription& option : command.options) {
    entries += option_entry(option);
  }
  return ".SS " + usage + "\n" + roff(command.help) + ".\n" + entries;
}

}  // namespace

std::string man_page(const CommandDescription& program) {
  // Ragged lines without hyphens: long options leave no room to stretch.
  std::string page = ".TH JFORGE 1 \"\" \"jforge " JFORGE_VERSION
                     "\" \"User Commands\"\n.ad l\n.nh\n"
                     ".SH NAME\njforge \\- turns an autoregressive language model into a parallel "
                     "decoder\n.SH SYNOPSIS\n\\fBjforge\\fP \\fICOMMAND\\fP [\\fIOPTIONS\\fP] | "
                     "\\fB\\-\\-help\\fP | \\fB\\-\\-version\\fP\n";
  std::string group;
  for (const CommandDescription* command : all_commands(program)) {
    if (command->path.size() == 2 && command->group != group) {
      group = command->group;
      page += ".SH " + group + "\n";
    }
    page += command->path.size() > 1 ? command_section(*command) : "";
  }
  return page + ".SH EXIT STATUS\n" + terms(kExitCodes) + ".SH ENVIRONMENT\n" +
         terms(kEnvironment) + ".SH FILES\nThe directory that \\fBrun.directory\\fP names holds\n" +
         terms(kFiles) +
         ".SH SEE ALSO\n\\fBmpirun\\fP(1), \\fBjforge schema \\-\\-reference\\fP (every key of the "
         "configuration), \\fI/usr/share/doc/jforge\\fP\n";
}

}  // namespace jforge
