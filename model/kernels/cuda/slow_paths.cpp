#include "model/kernels/cuda/slow_paths.h"

#include "runtime/log.h"

namespace jforge {

void warn_of_lane_attention(std::int64_t head_size) {
  log_warn(
      "attention in bfloat16 goes without tensor cores, at half a percent of their peak: its "
      "kernels there take heads of 64 and 128, the model's are of {}",
      head_size);
}

void warn_of_unrecorded_passes(std::int64_t rows) {
  log_warn(
      "the device has no memory to record a pass of {} rows: passes that are not recorded yet go "
      "kernel by kernel, slower where rows are few; lower batch_prompts or use fewer ranks per "
      "device",
      rows);
}

}  // namespace jforge
