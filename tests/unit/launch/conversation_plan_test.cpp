#include "launch/commands/conversation_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launch/plan_model.h"

namespace jforge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ConversationPlan, ADeviceHoldsWhatItTrains) {
  ConversationTraining training;
  training.train.batch_samples = 4;
  PreparedTraining prepared;
  prepared.model = test::plan_model();
  prepared.samples.resize(4);
  for (CausalSample& sample : prepared.samples) {
    sample.tokens.resize(50);
  }
  prepared.steps = 5;
  const auto text = [&](Device device) {
    return describe_plan(training, prepared, 2, device, {1e9, 1e9, 1e9});
  };
  const auto megabytes = [](double bytes) { return fmt::format("{:.1f} MB", bytes / 1e6); };

  const MemoryPlan host = plan_memory(training, prepared, 2, Device::cpu);
  EXPECT_THAT(text(Device::cpu),
              AllOf(HasSubstr(fmt::format("; {} in all\n", megabytes(host.training()))),
                    Not(HasSubstr("vocabulary loss")), Not(HasSubstr("on the device"))));
  const MemoryPlan device = plan_memory(training, prepared, 2, Device::cuda);
  EXPECT_LT(device.training(), host.training());
  EXPECT_THAT(text(Device::cuda),
              AllOf(HasSubstr(fmt::format("vocabulary loss {}, copy", megabytes(device.loss))),
                    HasSubstr(fmt::format("; {} in all and {} on the device\n",
                                          megabytes(device.training()),
                                          megabytes(device.training_on_device())))));
}

}  // namespace
}  // namespace jforge
