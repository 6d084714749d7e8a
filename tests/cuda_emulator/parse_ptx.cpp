#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>

#include "tests/cuda_emulator/fault.h"
#include "tests/cuda_emulator/instruction.h"

namespace jforge::emulator {

namespace {

[[noreturn]] void refuse(std::uint32_t line, const std::string& what) {
  throw Refusal("PTX line " + std::to_string(line) + ": " + what + " is not known to the emulator");
}

std::string quoted(std::string_view text) { return "`" + std::string(text) + "`"; }

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

/// Keeps line numbers.
std::string without_comments(std::string_view text) {
  std::string plain(text);
  for (std::size_t i = 0; i + 1 < plain.size(); ++i) {
    if (plain[i] != '/' || (plain[i + 1] != '/' && plain[i + 1] != '*')) {
      continue;
    }
    const bool line = plain[i + 1] == '/';
    const std::size_t found = plain.find(line ? "\n" : "*/", i + 2);
    const std::size_t end = found == std::string::npos ? plain.size() : found + (line ? 0 : 2);
    std::replace_if(
        plain.begin() + static_cast<std::ptrdiff_t>(i),
        plain.begin() + static_cast<std::ptrdiff_t>(end), [](char c) { return c != '\n'; }, ' ');
    i = end - 1;
  }
  return plain;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      if (const auto part = trimmed(text.substr(begin, i - begin)); !part.empty()) {
        parts.push_back(part);
      }
      begin = i + 1;
    }
  }
  return parts;
}

std::optional<std::uint64_t> number(std::string_view text) {
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) {
    text.remove_prefix(1);
  }
  if (!text.empty() && text.back() == 'U') {
    text.remove_suffix(1);
  }
  int base = 10;
  if (text.size() > 2 && text[0] == '0') {
    const char kind = text[1];
    if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D' || kind == 'x' || kind == 'X') {
      base = 16;
      text.remove_prefix(2);
    }
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return negative ? std::uint64_t{0} - value : value;
}

/// Returns 4 for "f32", 0 for other than a type.
unsigned type_width(std::string_view type) {
  static const std::map<std::string_view, unsigned> kWidths{
      {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2},
      {"s16", 2}, {"f16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4},
      {"f32", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};
  const auto found = kWidths.find(type);
  return found == kWidths.end() ? 0 : found->second;
}

struct Variable {
  std::string name;
  std::size_t alignment = 1;
  std::size_t bytes = 0;
};

Variable parse_variable(std::string_view text, std::uint32_t line) {
  Variable variable;
  std::size_t element = 0;
  std::size_t at = 0;
  const auto word = [&] {
    while (at < text.size() && is_space(text[at])) {
      ++at;
    }
    const std::size_t begin = at;
    while (at < text.size() && !is_space(text[at])) {
      ++at;
    }
    return text.substr(begin, at - begin);
  };
  for (std::string_view part = word(); !part.empty(); part = word()) {
    if (part == ".align") {
      variable.alignment = number(word()).value_or(0);
    } else if (part.front() == '.' && type_width(part.substr(1)) != 0) {
      element = type_width(part.substr(1));
      variable.alignment = std::max(variable.alignment, element);
    } else if (part == ".ptr" || part == ".global") {
      continue;
    } else if (part.front() == '.') {
      refuse(line, quoted(part) + " of a variable");
    } else {
      const std::size_t bracket = part.find('[');
      variable.name = std::string(part.substr(0, bracket));
      std::size_t count = 1;
      if (bracket != std::string_view::npos) {
        count = number(part.substr(bracket + 1, part.size() - bracket - 2)).value_or(0);
      }
      variable.bytes = element * count;
    }
  }
  if (variable.name.empty() || element == 0 || variable.alignment == 0) {
    refuse(line, quoted(text));
  }
  return variable;
}

std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

class KernelParser {
 public:
  KernelParser(std::string_view name, std::string_view parameters, std::string_view body,
               std::uint32_t line, const std::vector<Variable>& module_shared)
      : body_(body), line_(line) {
    kernel_.name = std::string(name);
    // Unread results (_) go to the front.
    sink_ = reserve(8);
    for (const std::string_view part : split(parameters)) {
      const Variable parameter = parse_variable(part.substr(std::strlen(".param")), line);
      const std::size_t offset = aligned(kernel_.parameter_bytes, parameter.alignment);
      symbols_[parameter.name] = offset;
      kernel_.parameters.push_back({offset, parameter.bytes});
      kernel_.parameter_bytes = offset + parameter.bytes;
    }
    for (const Variable& variable : module_shared) {
      if (body.find(variable.name) != std::string_view::npos) {
        shared_.push_back(variable);
      }
    }
  }

  Kernel parse() {
    try {
      parse_body();
    } catch (const Refusal& refusal) {
      kernel_.refused = refusal.what();
    }
    return std::move(kernel_);
  }

 private:
  void parse_body() {
    place_shared();
    scopes_.emplace_back();
    while (skip_space(), at_ < body_.size()) {
      statement();
    }
    for (const auto& [index, label, line] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) {
        refuse(line, "label " + quoted(label));
      }
      kernel_.code[index].target = found->second;
    }
  }

  struct Register {
    std::uint32_t offset;
    unsigned width;  ///< 0: a predicate
  };
  struct Jump {
    std::size_t index;
    std::string label;
    std::uint32_t line;
  };

  std::uint32_t reserve(unsigned width) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t offset = kernel_.register_file.size();
    const std::size_t bytes = width == 0 ? sizeof(LaneMask) : std::size_t{width} * kLanes;
    kernel_.register_file.resize(aligned(offset + bytes, kAlignment));
    return static_cast<std::uint32_t>(offset);
  }

  void skip_space() {
    while (at_ < body_.size() && is_space(body_[at_])) {
      line_ += body_[at_] == '\n' ? 1 : 0;
      ++at_;
    }
  }
  std::string_view until(char end) {
    const std::size_t found = std::min(body_.find(end, at_), body_.size());
    const std::string_view text = body_.substr(at_, found - at_);
    statement_line_ = line_;
    line_ += static_cast<std::uint32_t>(std::count(text.begin(), text.end(), '\n')) +
             (end == '\n' ? 1 : 0);
    at_ = std::min(found + 1, body_.size());
    return trimmed(text);
  }

  void place_shared() {
    for (std::size_t at = body_.find(".shared"); at != std::string_view::npos;
         at = body_.find(".shared", at + 1)) {
      const std::size_t before = body_.find_last_not_of(" \t", at - 1);
      if (body_[before] == '\n' || body_[before] == ';' || body_[before] == '{') {
        const std::size_t begin = at + std::strlen(".shared");
        shared_.push_back(parse_variable(body_.substr(begin, body_.find(';', at) - begin), line_));
      }
    }
    std::vector<std::string> dynamic;
    for (const Variable& variable : shared_) {
      if (variable.bytes == 0) {
        dynamic.push_back(variable.name);
        continue;
      }
      const std::size_t offset = aligned(kernel_.static_shared, variable.alignment);
      symbols_[variable.name] = offset;
      kernel_.static_shared = offset + variable.bytes;
    }
    constexpr std::size_t kDynamicAlignment = 16;
    kernel_.static_shared = aligned(kernel_.static_shared, kDynamicAlignment);
    for (const std::string& name : dynamic) {
      symbols_[name] = kernel_.static_shared;
    }
  }

  void statement() {
    const char first = body_[at_];
    if (first == '{') {
      ++at_;
      scopes_.emplace_back();
    } else if (first == '}') {
      ++at_;
      scopes_.pop_back();
    } else if (first == '.') {
      directive();
    } else if (const std::size_t end = label_end(); end != 0) {
      labels_[std::string(body_.substr(at_, end - at_))] =
          static_cast<std::uint32_t>(kernel_.code.size());
      at_ = end + 1;
    } else {
      instruction(until(';'));
    }
  }
  [[nodiscard]] std::size_t label_end() const {
    std::size_t end = at_;
    while (end < body_.size() && (std::isalnum(static_cast<unsigned char>(body_[end])) != 0 ||
                                  body_[end] == '$' || body_[end] == '_')) {
      ++end;
    }
    return end > at_ && end < body_.size() && body_[end] == ':' ? end : 0;
  }

  void directive() {
    const std::string_view rest = body_.substr(at_);
    if (rest.starts_with(".loc") && is_space(rest[4])) {
      until('\n');
      return;
    }
    const std::string_view text = until(';');
    if (text.starts_with(".reg")) {
      declare_registers(text.substr(std::strlen(".reg")));
    } else if (text.starts_with(".local")) {
      const Variable variable = parse_variable(text.substr(std::strlen(".local")), statement_line_);
      const std::size_t offset = aligned(kernel_.local_bytes, variable.alignment);
      symbols_[variable.name] = offset;
      kernel_.local_bytes = offset + variable.bytes;
    } else if (!text.starts_with(".pragma") && !text.starts_with(".shared")) {
      refuse(statement_line_, "directive " + quoted(text));
    }
  }

  /// " .b32 %r<20>" or " .b32 %temp"; numbered ones get a place when first used.
  void declare_registers(std::string_view text) {
    text = trimmed(text);
    const std::size_t space = text.find_first_of(" \t");
    const std::string_view type = text.substr(1, space - 1);
    const unsigned width = type_width(type);
    if (width == 0 && type != "pred") {
      refuse(statement_line_, "register type " + quoted(type));
    }
    for (const std::string_view name : split(text.substr(space))) {
      const std::size_t bracket = name.find('<');
      scopes_.back()[std::string(name.substr(0, bracket))] = {0, width};
    }
  }

  Register find_register(std::string_view name) {
    if (const auto found = used_.find(std::string(name)); found != used_.end()) {
      // A name in an inner scope may have another width.
      if (const auto* declared = declaration(name);
          declared != nullptr && declared->width == found->second.width) {
        return found->second;
      }
    }
    const Register* const declared = declaration(name);
    if (declared == nullptr) {
      refuse(statement_line_, "operand " + quoted(name));
    }
    const Register made{reserve(declared->width), declared->width};
    used_[std::string(name)] = made;
    return made;
  }
  [[nodiscard]] const Register* declaration(std::string_view name) const {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      for (const std::string_view key : {name, name.substr(0, digits)}) {
        if (const auto found = scope->find(std::string(key)); found != scope->end()) {
          return &found->second;
        }
      }
    }
    return nullptr;
  }

  std::uint32_t constant(std::uint64_t bits, unsigned width) {
    if (width < sizeof bits) {
      bits &= (std::uint64_t{1} << (8 * width)) - 1;
    }
    const auto [place, added] = constants_.try_emplace({bits, width}, 0);
    if (added) {
      place->second = reserve(width);
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        std::memcpy(&kernel_.register_file[place->second + std::size_t{lane} * width], &bits,
                    width);
      }
    }
    return place->second;
  }

  std::uint32_t special(std::string_view name) {
    const auto* const found = std::find(kSpecialRegisters.begin(), kSpecialRegisters.end(), name);
    if (found == kSpecialRegisters.end()) {
      refuse(statement_line_, "special register " + quoted(name));
    }
    const auto index = static_cast<std::size_t>(found - kSpecialRegisters.begin());
    for (const auto& [which, offset] : kernel_.specials) {
      if (which == index) {
        return offset;
      }
    }
    const std::uint32_t offset = reserve(4);
    kernel_.specials.emplace_back(index, offset);
    return offset;
  }

  /// Sets `width` to the register's if `wider`.
  std::uint32_t value(std::string_view text, unsigned& width, bool wider) {
    if (const auto literal = number(text)) {
      return constant(*literal, width);
    }
    if (text.empty() || text.front() != '%') {
      const std::size_t plus = text.find('+');
      const auto symbol = symbols_.find(std::string(trimmed(text.substr(0, plus))));
      const auto offset = plus == std::string_view::npos ? std::uint64_t{0}
                                                         : number(trimmed(text.substr(plus + 1)));
      if (symbol == symbols_.end() || !offset) {
        refuse(statement_line_, "operand " + quoted(text));
      }
      return constant(symbol->second + *offset, width);
    }
    if (declaration(text) == nullptr) {
      const std::uint32_t place = special(text);
      if (width != 4) {
        refuse(statement_line_, "special register " + quoted(text) + " as another than 32 bits");
      }
      return place;
    }
    const Register found = find_register(text);
    if (found.width != width && !(wider && found.width > width)) {
      refuse(statement_line_, "register " + quoted(text) + " of " +
                                  std::to_string(8 * found.width) + " bits in `" + current_ + "`");
    }
    width = found.width;
    return found.offset;
  }

  std::uint32_t predicate(std::string_view text) {
    if (text == "_") {
      return sink_;
    }
    if (const auto literal = number(text)) {
      return constant(*literal == 0 ? 0 : kAllLanes, sizeof(LaneMask));
    }
    const Register found = find_register(text);
    if (found.width != 0) {
      refuse(statement_line_, "predicate " + quoted(text));
    }
    return found.offset;
  }

  Address address(std::string_view text) {
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
      refuse(statement_line_, "address " + quoted(text));
    }
    text = trimmed(text.substr(1, text.size() - 2));
    Address result;
    if (text.front() != '%') {
      unsigned width = 8;
      result.base = value(text, width, false);
      return result;
    }
    const std::size_t plus = text.find('+');
    const Register base = find_register(trimmed(text.substr(0, plus)));
    if (plus != std::string_view::npos) {
      const auto offset = number(trimmed(text.substr(plus + 1)));
      if (!offset) {
        refuse(statement_line_, "address " + quoted(text));
      }
      result.offset = static_cast<std::int64_t>(*offset);
    }
    if (base.width != 4 && base.width != 8) {
      refuse(statement_line_, "address " + quoted(text));
    }
    result.base = base.offset;
    result.narrow = base.width == 4;
    return result;
  }

  void instruction(std::string_view text) {
    current_ = std::string(text);
    std::replace_if(current_.begin(), current_.end(), is_space, ' ');
    Instruction made;
    if (text.front() == '@') {
      const std::size_t space = text.find_first_of(" \t");
      std::string_view guard = text.substr(1, space - 1);
      made.guarded = true;
      made.guard_negated = guard.front() == '!';
      made.guard = predicate(made.guard_negated ? guard.substr(1) : guard);
      text = trimmed(text.substr(space));
    }
    const std::size_t space = std::min(text.find_first_of(" \t\n"), text.size());
    std::string name(text.substr(0, space));
    const std::vector<std::string_view> operands = split(text.substr(space));
    if (name.starts_with("mov.") && operands.size() == 2) {
      for (const auto& [operand, kind] : {std::pair{1, " pack"}, std::pair{0, " unpack"}}) {
        const std::string_view parts = operands[static_cast<std::size_t>(operand)];
        if (parts.front() == '{') {
          name += kind + std::to_string(std::count(parts.begin(), parts.end(), ',') + 1);
          break;
        }
      }
    }
    const auto found = operations().find(name);
    if (found == operations().end()) {
      refuse(statement_line_, "instruction " + quoted(name) + " in `" + current_ + "`");
    }
    made.execute = found->second.execute;
    made.flow = found->second.flow;
    place_operands(found->second, operands, made);
    if (found->second.shared_bytes != 0) {
      kernel_.shared_granule =
          std::min<std::size_t>(kernel_.shared_granule, found->second.shared_bytes);
    }
    kernel_.code.push_back(made);
    kernel_.text.push_back(current_);
    kernel_.lines.push_back(statement_line_);
  }

  void place_operands(const Operation& operation, const std::vector<std::string_view>& operands,
                      Instruction& made) {
    std::size_t next = 0;
    std::size_t next_address = 0;
    std::size_t given = 0;
    for (const Form& form : operation.forms) {
      if (given == operands.size() && form.may_be_left_out) {
        made.operands[next++] = constant(~std::uint64_t{0}, form.width);
        continue;
      }
      if (given == operands.size()) {
        refuse(statement_line_, "this number of operands of `" + current_ + "`");
      }
      const std::string_view text = operands[given++];
      switch (form.slot) {
        case Slot::value:
        case Slot::result:
        case Slot::wider_value:
        case Slot::wider_result:
          for (const std::string_view part : elements(text, form.count)) {
            const bool wider = form.slot == Slot::wider_value || form.slot == Slot::wider_result;
            unsigned width = form.width;
            const bool sink =
                part == "_" && (form.slot == Slot::result || form.slot == Slot::wider_result);
            made.operands[next++] = sink ? sink_ : value(part, width, wider);
            if (wider) {
              made.width = width;
            }
          }
          break;
        case Slot::members: {
          unsigned width = 4;
          made.members = value(text, width, false);
          made.has_members = true;
          break;
        }
        case Slot::predicate:
          made.operands[next++] = predicate(text);
          break;
        case Slot::predicate_result:
        case Slot::result_and_predicate: {
          const std::size_t bar = std::min(text.find('|'), text.size());
          const std::string_view first = text.substr(0, bar);
          unsigned width = form.width;
          made.operands[next++] = form.slot == Slot::predicate_result ? predicate(first)
                                  : first == "_"                      ? sink_
                                                                      : value(first, width, false);
          made.operands[next++] = bar == text.size() ? sink_ : predicate(text.substr(bar + 1));
          break;
        }
        case Slot::address:
          made.addresses[next_address++] = address(text);
          break;
        case Slot::label:
          jumps_.push_back({kernel_.code.size(), std::string(text), statement_line_});
          break;
        case Slot::immediate: {
          const auto literal = number(text);
          if (!literal) {
            refuse(statement_line_, "`" + current_ + "` with other than a number");
          }
          made.immediate = static_cast<std::uint32_t>(*literal);
          break;
        }
      }
    }
    if (given != operands.size()) {
      refuse(statement_line_, "this number of operands of `" + current_ + "`");
    }
  }

  std::vector<std::string_view> elements(std::string_view text, unsigned count) const {
    std::vector<std::string_view> parts{text};
    if (text.front() == '{') {
      parts = split(text.substr(1, text.size() - 2));
    }
    if (parts.size() != count) {
      refuse(statement_line_, "vector " + quoted(text) + " in `" + current_ + "`");
    }
    return parts;
  }

  Kernel kernel_;
  std::string_view body_;
  std::size_t at_ = 0;
  std::uint32_t line_;
  std::uint32_t statement_line_ = 0;
  std::uint32_t sink_ = 0;
  std::string current_;
  std::vector<Variable> shared_;
  std::map<std::string, std::uint64_t> symbols_;
  std::vector<std::map<std::string, Register>> scopes_;  ///< declared, without places
  std::map<std::string, Register> used_;
  std::map<std::pair<std::uint64_t, unsigned>, std::uint32_t> constants_;
  std::map<std::string, std::uint32_t> labels_;
  std::vector<Jump> jumps_;
};

std::size_t closing_brace(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) {
      return i;
    }
  }
  throw Refusal("PTX ends inside a kernel");
}

}  // namespace

std::vector<Kernel> parse_ptx(std::string_view commented) {
  const std::string plain = without_comments(commented);
  const std::string_view text = plain;
  std::vector<Kernel> kernels;
  std::vector<Variable> shared;
  const auto line_at = [&](std::size_t at) {
    return 1 + static_cast<std::uint32_t>(
                   std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  };
  for (std::size_t at = text.find_first_not_of(" \t\r\n"); at < text.size();
       at = text.find_first_not_of(" \t\r\n", at)) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(".version") || rest.starts_with(".target") ||
        rest.starts_with(".address_size") || rest.starts_with(".file")) {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(";{", at), text.size());
    const std::string_view head = trimmed(text.substr(at, end - at));
    const std::size_t entry = head.find(".entry");
    if (entry != std::string_view::npos && end < text.size() && text[end] == '{') {
      const std::string_view signature = trimmed(head.substr(entry + std::strlen(".entry")));
      const std::size_t open = std::min(signature.find('('), signature.size());
      const std::size_t close = std::min(signature.find(')'), signature.size());
      const std::string_view parameters =
          open < close ? signature.substr(open + 1, close - open - 1) : std::string_view{};
      const std::size_t last = closing_brace(text, end);
      kernels.push_back(KernelParser(trimmed(signature.substr(0, open)), parameters,
                                     text.substr(end + 1, last - end - 1), line_at(end), shared)
                            .parse());
      at = last + 1;
    } else if (const std::size_t space = head.find(".shared");
               space != std::string_view::npos &&
               (space == 0 || head.starts_with(".extern") || head.starts_with(".weak"))) {
      shared.push_back(parse_variable(head.substr(space + std::strlen(".shared")), line_at(at)));
      at = std::min(end + 1, text.size());
    } else {
      refuse(line_at(at), quoted(head.substr(0, head.find('\n'))));
    }
  }
  return kernels;
}

}  // namespace jforge::emulator
