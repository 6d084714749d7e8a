#pragma once

/// What jforge pretrain and finetune would do, without doing it (--dry-run), and the memory for it.

#include <string>

#include "launch/commands/job_plan.h"
#include "workers/conversation_training.h"

namespace jforge {

/// Of one rank of `ranks` that compute on `device`.
[[nodiscard]] MemoryPlan plan_memory(const ConversationTraining& training,
                                     const PreparedTraining& prepared, int ranks, Device device);

/// Samples, steps, memory per rank, an estimate of the time at `speed`: plain text.
[[nodiscard]] std::string describe_plan(const ConversationTraining& training,
                                        const PreparedTraining& prepared, int ranks, Device device,
                                        const MachineSpeed& speed);

}  // namespace jforge
