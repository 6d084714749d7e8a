#include "runtime/error.h"

namespace jforge {

void expect(bool condition, const std::string& what, std::source_location where) {
  if (!condition) [[unlikely]] {
    throw InternalError(std::string(where.file_name()) + ":" + std::to_string(where.line()) + " (" +
                        where.function_name() + "): " + what);
  }
}

}  // namespace jforge
