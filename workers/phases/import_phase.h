#pragma once

/// The import of the prompts, and the checks of the store that it made.

#include <optional>
#include <string>

#include "checkpoints/checkpoint_reader.h"
#include "checkpoints/identity.h"
#include "data/prompts/prompt_encoder.h"
#include "data/prompts/prompt_import.h"
#include "workers/job_config.h"
#include "workers/phases/services.h"
#include "workers/run_layout.h"

namespace jforge {

class ImportPhase {
 public:
  /// All must outlive it.
  ImportPhase(const JobConfig& config, const WorkerServices& services, const RunLayout& layout)
      : config_(config), services_(services), layout_(layout) {}

  /// Collective. Verifies the store, if there is one. A damaged store is renamed to *.damaged; a
  /// lost or damaged report of the import is written again. Throws ConfigError if the store was
  /// imported with other settings.
  void check() const;
  /// Collective. Sets the prompts' digest in `identity`, if prompts are imported.
  void identify(Identity& identity) const;
  /// Compares the prompts' digest in `present` with that of `checkpoint`. If the prompts are
  /// lost, warns and returns the checkpoint's digest, which the next import must reproduce. Throws
  /// DataError if the prompts are others.
  std::optional<std::string> expect_prompts_of(const Checkpoint& checkpoint,
                                               const Identity& present);

  /// Collective. Imports the prompts. Returns false if a stop was requested.
  [[nodiscard]] bool run();

 private:
  [[nodiscard]] PromptImportConfig import_config() const;
  [[nodiscard]] PromptEncoder encoder() const;

  const JobConfig& config_;
  const WorkerServices& services_;
  const RunLayout& layout_;
  std::optional<std::string> lost_digest_;  ///< Digest of lost prompts that a checkpoint names.
};

}  // namespace jforge
