#pragma once

/// What a distributed test sees of tests/support/mpi_test_main.cpp. Every rank runs every test; a
/// test fails when any rank fails it, and the failing ranks are named.

#include "runtime/comm/mpi_session.h"

namespace jforge::test {

/// The test's communicator over all ranks. Valid inside tests only.
[[nodiscard]] const Communicator& test_world();

}  // namespace jforge::test
