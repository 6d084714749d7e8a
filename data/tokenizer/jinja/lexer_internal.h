#pragma once

/// A template's text as tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jforge::jinja {

struct Token {
  enum class Kind {
    data,  ///< Literal text.
    print_begin,
    print_end,
    statement_begin,
    statement_end,
    name,
    string,
    integer,
    real,
    sign,  ///< An operator or bracket.
    end,
  };
  Kind kind;
  int line;
  std::string text = {};  ///< Of a string its value.
  std::int64_t integer = 0;
  double real = 0;
};

/// The tokens of well-formed UTF-8 as jinja2 makes them with trim_blocks and lstrip_blocks:
/// comments are gone, blanks are where they are printed. The last is an `end`. TemplateError for
/// what does not lex.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace jforge::jinja
