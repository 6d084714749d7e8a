#pragma once

/// The terminal, if any, at which a person reads standard error or output.

namespace jforge {

/// Move-only handle of a terminal, or of none. What is written goes to the stream as always; this
/// only says that a terminal is at its end, and how wide it is.
class Terminal {
 public:
  /// Where standard error ends: at a terminal itself or, for a rank whose standard error is a pipe
  /// of the mpirun that started it on this host, where that mpirun's does.
  [[nodiscard]] static Terminal of_standard_error();
  /// Where standard output ends.
  [[nodiscard]] static Terminal of_standard_output();
  Terminal() = default;
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&& other) noexcept;
  ~Terminal();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// Its width now; 80 where it does not tell.
  [[nodiscard]] int columns() const noexcept;

 private:
  /// Takes the descriptor over; closes one that is no terminal's.
  explicit Terminal(int descriptor) noexcept;

  int descriptor_ = -1;
};

}  // namespace jforge
