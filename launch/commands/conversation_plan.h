#pragma once

/// Plan (--dry-run) and memory of jforge pretrain and finetune.

#include <string>

#include "launch/commands/job_plan.h"
#include "workers/conversation_training.h"

namespace jforge {

/// Returns the memory of one rank.
[[nodiscard]] MemoryPlan plan_memory(const ConversationTraining& training,
                                     const PreparedTraining& prepared, int ranks, Device device);

/// Returns samples, steps, memory and estimated time as plain text.
[[nodiscard]] std::string describe_plan(const ConversationTraining& training,
                                        const PreparedTraining& prepared, int ranks, Device device,
                                        const MachineSpeed& speed);

}  // namespace jforge
