#include "runtime/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace jforge {
namespace {

TEST(Error, TypesCarryTheDocumentedExitCodes) {
  EXPECT_EQ(static_cast<int>(ConfigError("x").code()), 2);
  EXPECT_EQ(static_cast<int>(DataError("x").code()), 3);
  EXPECT_EQ(static_cast<int>(EnvironmentError("x").code()), 4);
  EXPECT_EQ(static_cast<int>(CommError("x").code()), 4);
  EXPECT_EQ(static_cast<int>(NumericalError("x").code()), 5);
  EXPECT_EQ(static_cast<int>(InternalError("x").code()), 70);
  EXPECT_EQ(static_cast<int>(Interrupted("x").code()), 75);
}

TEST(Error, ExpectNamesTheCallersPlace) {
  EXPECT_NO_THROW(expect(true, "fine"));
  const std::string message =
      test::message_of<InternalError>([&] { expect(false, std::string("broken thing")); });
  EXPECT_THAT(message, ::testing::HasSubstr("error_test.cpp"));
  EXPECT_THAT(message, ::testing::HasSubstr("broken thing"));
}

}  // namespace
}  // namespace jforge
