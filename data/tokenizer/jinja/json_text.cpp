#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/tokenizer/jinja/builtins_internal.h"
#include "data/tokenizer/jinja/text_internal.h"

namespace jforge::jinja {
namespace {

constexpr int kDeepestJson = 100;

struct JsonStyle {
  bool ascii_only = false;
  bool sorted = false;
  bool lines = false;  ///< Each item in a line of its own.
  std::string indent;
  std::string between_items = ", ";
  std::string behind_key = ": ";
};

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void write(const Value& value) {
    runtime_.charge(1);
    switch (value.kind) {
      case Kind::none:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += value.boolean ? "true" : "false";
        return;
      case Kind::integer:
        append_text(out_, value);
        return;
      case Kind::real:
        write_real(value);
        return;
      case Kind::string:
        write_text(value.text);
        return;
      case Kind::list:
      case Kind::tuple:
        write_all(value.sequence->items, '[', ']', [this](const Value& item) { write(item); });
        return;
      case Kind::mapping:
        write_mapping(value.mapping->entries);
        return;
      default:
        fail(fmt::format("a {} has no JSON", type_name(value.kind)));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) {
    runtime_.charge_bytes(text.size());
    out_ += text;
    if (out_.size() > kMostBytes) fail("a value is too long");
  }

  void write_text(std::string_view text) {
    runtime_.charge_bytes(text.size());
    append_json(out_, text, style_.ascii_only);
    if (out_.size() > kMostBytes) fail("a value is too long");
  }

  void write_real(const Value& value) {
    if (std::isfinite(value.real)) {
      append_text(out_, value);
    } else {
      out_ += std::isnan(value.real) ? "NaN" : value.real < 0 ? "-Infinity" : "Infinity";
    }
  }

  void write_mapping(std::span<const Entry> entries) {
    std::vector<Entry> sorted(entries.begin(), entries.end());
    if (style_.sorted) {
      std::ranges::stable_sort(sorted, [this](const Entry& left, const Entry& right) {
        return less(runtime_, left.key, right.key, "<");
      });
    }
    write_all(std::span<const Entry>(sorted), '{', '}', [this](const Entry& entry) {
      if (!entry.key.is(Kind::string)) fail("only strings are keys in JSON here");
      write_text(entry.key.text);
      add(style_.behind_key);
      write(entry.value);
    });
  }

  template <typename Item, typename Write>
  void write_all(std::span<const Item> items, char open, char close, Write write_item) {
    out_ += open;
    if (++depth_ > kDeepestJson) fail("a value is nested too deeply");
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) add(style_.between_items);
      begin_line();
      write_item(items[i]);
    }
    --depth_;
    if (!items.empty()) begin_line();
    out_ += close;
  }

  void begin_line() {
    if (!style_.lines) return;
    out_ += '\n';
    for (int i = 0; i < depth_; ++i) add(style_.indent);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
  int depth_ = 0;
};

}  // namespace

Value to_json(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Parameters given(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii_only = given.flag(0, false);
  style.sorted = given.flag(3, false);
  if (given[1] != nullptr && !given[1]->is(Kind::none)) {
    style.lines = true;
    style.between_items = ",";
    if (given[1]->is(Kind::string)) {
      style.indent = given.text(1);
    } else {
      const std::int64_t blanks = std::max<std::int64_t>(given.whole(1, 0), 0);
      if (blanks > 1000) fail("an indent of more than 1000 blanks");
      style.indent.assign(static_cast<std::size_t>(blanks), ' ');
    }
  }
  if (given[2] != nullptr && !given[2]->is(Kind::none)) {
    const auto parts = items_of(runtime, *given[2]);
    if (parts.size() != 2 || !parts[0].is(Kind::string) || !parts[1].is(Kind::string)) {
      fail("separators must be two strings");
    }
    style.between_items = parts[0].text;
    style.behind_key = parts[1].text;
  }
  JsonWriter writer(runtime, style);
  writer.write(value);
  return runtime.text(writer.take());
}

}  // namespace jforge::jinja
