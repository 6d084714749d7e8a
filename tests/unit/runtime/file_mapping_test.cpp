#include "runtime/file_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "runtime/error.h"
#include "runtime/stop_signal.h"
#include "tests/support/temporary_directory.h"

namespace jforge {
namespace {

constexpr std::size_t kBytes = 3 * 65536;

class FileMappingTest : public ::testing::Test {
 protected:
  FileMappingTest() {
    // A fault ends the process.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x');
  }
  static void touch(const std::byte* place) {
    static_cast<void>(*const_cast<const volatile std::byte*>(place));
  }

  test::TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "weights";
};

TEST_F(FileMappingTest, HoldsTheFile) {
  const FileMapping file(path_);
  ASSERT_EQ(file.bytes().size(), kBytes);
  EXPECT_EQ(file.bytes().back(), std::byte{'x'});
  std::ofstream(directory_.path() / "empty").close();
  EXPECT_TRUE(FileMapping(directory_.path() / "empty").bytes().empty());
  EXPECT_THROW(FileMapping(directory_.path() / "nothing"), DataError);
  EXPECT_THROW(FileMapping(directory_.path()), DataError);
}

TEST_F(FileMappingTest, AFileCutOffWhileItIsReadIsNamedAndExit4) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        const FileMapping other(path_);
        const FileMapping file(path_);
        std::filesystem::resize_file(path_, 0);
        touch(&file.bytes().back());
      },
      ::testing::ExitedWithCode(4), "^jforge: .*weights: could not be read: .*made shorter.*\n$");
}

TEST_F(FileMappingTest, MemoryOfNoMappedFileIsStillASignal) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        const std::byte* place = nullptr;
        {
          const FileMapping file(path_);
          place = file.bytes().data();
        }
        std::FILE* const stream = std::fopen(path_.c_str(), "rb");  // At the old address.
        void* const memory = ::mmap(const_cast<std::byte*>(place), kBytes, PROT_READ,
                                    MAP_PRIVATE | MAP_FIXED, ::fileno(stream), 0);
        std::filesystem::resize_file(path_, 0);
        touch(static_cast<const std::byte*>(memory));
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FileMappingTest, ABusErrorThatIsSentIsObeyed) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        std::raise(SIGBUS);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace jforge
