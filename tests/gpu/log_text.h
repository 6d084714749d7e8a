#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/log.h"

namespace jforge::test {

class LogText {
 public:
  LogText() { sinks().push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)); }
  ~LogText() { sinks().pop_back(); }
  LogText(const LogText&) = delete;
  LogText& operator=(const LogText&) = delete;

  [[nodiscard]] std::string text() const { return text_.str(); }
  [[nodiscard]] std::ptrdiff_t lines_with(const std::string& words) const {
    std::istringstream text(text_.str());
    std::ptrdiff_t count = 0;
    for (std::string line; std::getline(text, line);) {
      count += line.find(words) == std::string::npos ? 0 : 1;
    }
    return count;
  }

 private:
  static std::vector<spdlog::sink_ptr>& sinks() { return spdlog::default_logger()->sinks(); }

  std::ostringstream text_;
};

}  // namespace jforge::test
