#pragma once

namespace jforge {

/// Move-only handle of the terminal that shows standard error or output, if any. Tells only that
/// there is one, and its width; output goes to the stream.
class Terminal {
 public:
  /// Returns standard error's terminal or, for a rank whose standard error is a pipe of the mpirun
  /// that started it on this host, that mpirun's.
  [[nodiscard]] static Terminal of_standard_error();
  /// Returns standard output's terminal.
  [[nodiscard]] static Terminal of_standard_output();
  Terminal() = default;
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&& other) noexcept;
  ~Terminal();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// Returns the current width; 80 if unknown.
  [[nodiscard]] int columns() const noexcept;

 private:
  /// Takes ownership of the descriptor; closes it if it is not a terminal's.
  explicit Terminal(int descriptor) noexcept;

  int descriptor_ = -1;
};

}  // namespace jforge
