#include "workers/evaluate/sandbox/sandbox_internal.h"

// JFORGE_SANDBOX_INIT: the executable's path at build time.
__asm__(
    ".pushsection .rodata\n"
    ".balign 16\n"
    ".hidden jforge_sandbox_init_begin\n"
    ".globl jforge_sandbox_init_begin\n"
    "jforge_sandbox_init_begin:\n"
    ".incbin \"" JFORGE_SANDBOX_INIT
    "\"\n"
    ".hidden jforge_sandbox_init_end\n"
    ".globl jforge_sandbox_init_end\n"
    "jforge_sandbox_init_end:\n"
    ".popsection\n");

// Labels of the assembler text.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
extern const char jforge_sandbox_init_begin[] __attribute__((visibility("hidden")));
extern const char jforge_sandbox_init_end[] __attribute__((visibility("hidden")));
}
// NOLINTEND(readability-identifier-naming)

namespace jforge {

std::string_view sandbox_init_image() {
  return {jforge_sandbox_init_begin,
          static_cast<std::size_t>(jforge_sandbox_init_end - jforge_sandbox_init_begin)};
}

}  // namespace jforge
