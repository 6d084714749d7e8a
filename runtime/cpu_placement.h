#pragma once

#include <filesystem>

namespace jforge {

/// Keeps every thread of this process, and those that they start, on the processors that the file
/// `list` names as Linux does ("0-3,8-11", local_cpulist of a PCI device), as far as they may run
/// there now. Returns false, and changes nothing, if they may run on none of them. A file that is
/// missing or cannot be understood changes nothing.
[[nodiscard]] bool stay_near(const std::filesystem::path& list);

}  // namespace jforge
