#pragma once

namespace jforge {

/// Move-only handle of a stream's terminal, if any: tells that it exists, and its width.
class Terminal {
 public:
  /// Returns standard error's terminal or, if that is the pipe of this rank's mpirun, mpirun's.
  [[nodiscard]] static Terminal of_standard_error();
  [[nodiscard]] static Terminal of_standard_output();
  Terminal() = default;
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&& other) noexcept;
  ~Terminal();

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// Returns the current width; 80 if unknown.
  [[nodiscard]] int columns() const noexcept;

 private:
  /// Takes ownership of the descriptor; closes it unless it is a terminal's.
  explicit Terminal(int descriptor) noexcept;

  int descriptor_ = -1;
};

}  // namespace jforge
