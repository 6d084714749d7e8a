#pragma once

/// Interface of tests/support/mpi_test_main.cpp. Every rank runs every test; a test fails if any
/// rank fails it.

#include "runtime/comm/mpi_session.h"

namespace jforge::test {

/// Communicator over all ranks, valid inside tests only.
[[nodiscard]] const Communicator& test_world();

}  // namespace jforge::test
