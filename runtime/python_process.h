#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jforge {

/// A Python program with which this process talks through its standard input and output. It is the
/// first `python3` on PATH, gets no signal that is meant for a job, and ends when the object does.
/// A program refuses data with exit code 3, its own environment with 4, and one line on standard
/// error. Not thread-safe.
class PythonProcess {
 public:
  struct Purpose {
    std::string subject;  ///< Begins error messages: a file, for example.
    std::string need;     ///< "a Parquet file is read with Python's pyarrow".
    std::string install;  ///< A shell command.
  };

  /// Throws EnvironmentError if the process cannot be started.
  PythonProcess(const char* source, const std::vector<std::string>& arguments, Purpose purpose);
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  /// An end of the process is reported by read().
  void write(std::string_view bytes);
  /// Returns the number of bytes read, 0 at the end. Requires: `out` is not empty. Throws DataError
  /// if the program refuses its data, EnvironmentError if it ended otherwise.
  [[nodiscard]] std::size_t read(std::span<char> out);

 private:
  int wait();
  [[nodiscard]] std::string last_message() const;

  Purpose purpose_;
  int stream_ = -1;    ///< Its standard input and output.
  int messages_ = -1;  ///< Its standard error, in memory.
  pid_t process_ = -1;
};

}  // namespace jforge
