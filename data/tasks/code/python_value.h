#pragma once

/// Values of Python programs outside Python: read from the JSON of code_runner.h, compared as
/// Python's == and as numpy's closeness do.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tasks/code/json_tree.h"

namespace jforge {

/// A Python value of the builtin types.
struct PythonValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    complex,
    text,
    bytes,
    list,
    tuple,
    set,
    dict,
    array,  ///< numpy array as nested lists.
    other   ///< Anything else; equal to nothing.
  };
  Kind kind = Kind::none;
  bool truth = false;  ///< Of a boolean.
  /// Integer: decimal without leading zeros or "-0". Text: UTF-8 with lone surrogates in their
  /// three-byte form. Bytes: lower-case hex. Other: the type's name.
  std::string text = {};
  double real = 0.0;       ///< Of a real or complex number.
  double imaginary = 0.0;  ///< Of a complex number.
  /// Elements; of a dict key, value, key, value.
  std::vector<PythonValue> items = {};
};

/// Reads the value JSON of code_runner.h; nothing when it is none.
[[nodiscard]] std::optional<PythonValue> parse_python_value(std::string_view json);

/// The value that Python's json.loads gives for a JSON value.
[[nodiscard]] PythonValue python_value(const JsonNode& json);

/// A text (UTF-8 as in JsonNode) as an ASCII Python literal.
[[nodiscard]] std::string python_text_literal(const std::string& text);

/// The value that Python's json.loads gives, as an ASCII Python expression over builtins.
[[nodiscard]] std::string python_literal(const JsonNode& json);

/// Python's ==: True == 1 == 1.0 (exactly, whatever their size), a list is no tuple, sets and dicts
/// without order, NaN equal to nothing. An array is equal to nothing: Python refuses to take its
/// element-wise answer for a truth value.
[[nodiscard]] bool python_equal(const PythonValue& left, const PythonValue& right);

/// How numpy arrays of two values must fit each other.
enum class ArrayFit : std::uint8_t {
  same_shape_or_scalar,  ///< numpy.testing.assert_allclose.
  broadcast              ///< numpy.allclose.
};
/// |actual − desired| ≤ atol + rtol·|desired| for every element of the two as numpy arrays of
/// numbers; infinities must be equal; two NaNs are close only with `nan_is_close`. False for values
/// of which numpy makes no such array (texts, None, ragged lists, integers beyond 64 bits).
[[nodiscard]] bool numpy_close(const PythonValue& actual, const PythonValue& desired, double rtol,
                               double atol, bool nan_is_close, ArrayFit fit);

/// The elements that Python's iter() gives for a text, list, tuple, set, dict or array; nothing for
/// the others.
[[nodiscard]] std::optional<std::vector<PythonValue>> python_elements(const PythonValue& value);

/// Whether set(left) == set(right) in Python; false also where one is not iterable or an element
/// not hashable.
[[nodiscard]] bool python_set_equal(const PythonValue& left, const PythonValue& right);

/// The number as a double (booleans as 0 and 1); nothing for what is no real number or overflows.
[[nodiscard]] std::optional<double> python_real(const PythonValue& value);

}  // namespace jforge
