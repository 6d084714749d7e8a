#pragma once

#include <filesystem>

namespace jforge {

/// Restricts all threads of this process, and threads that they start, to those allowed processors
/// that the file `list` names in Linux format ("0-3,8-11", local_cpulist of a PCI device). Returns
/// false and changes nothing if none is allowed. A missing or invalid file changes nothing.
[[nodiscard]] bool stay_near(const std::filesystem::path& list);

}  // namespace jforge
