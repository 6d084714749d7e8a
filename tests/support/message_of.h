#pragma once

#include <string>

#include "runtime/error.h"

namespace jforge::test {

/// Calls `work` and returns the message of the Kind that it throws, or "nothing thrown". Exceptions
/// of another type pass through.
template <class Kind, class Work>
std::string message_of(const Work& work) {
  try {
    static_cast<void>(work());
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// Like message_of<Error>(), but complains in front of the message of an Error with another code.
template <class Work>
std::string message_of(ExitCode code, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code() == code ? error.what() : std::string("wrong type: ") + error.what();
  }
  return "nothing thrown";
}

}  // namespace jforge::test
