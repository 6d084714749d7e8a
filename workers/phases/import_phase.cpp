#include "workers/phases/import_phase.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/prompts/prompt_store.h"
#include "data/tokenizer/byte_pair_tokenizer.h"
#include "data/tokenizer/chat_template.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/durable_file.h"
#include "runtime/log.h"
#include "runtime/read_file.h"
#include "runtime/stop_signal.h"
#include "runtime/text_seal.h"

namespace jforge {

namespace {

/// Returns the store after verifying every byte; nothing if there is none. Renames a damaged one.
std::optional<PromptStore> open_or_set_aside(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  try {
    return PromptStore::open(path, SealCheck::content);
  } catch (const DataError& error) {
    log_warn("{}; it is set aside as *.damaged", error.what());
  }
  std::filesystem::rename(path, path.string() + ".damaged");
  return std::nullopt;
}

bool holds(const std::filesystem::path& path, const std::string& content) {
  try {
    return std::filesystem::exists(path) && read_file(path) == content;
  } catch (const DataError&) {
    return false;
  }
}

/// A damaged report cannot be written again without its store, and the run's report would stop at
/// it.
void set_damaged_report_aside(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return;
  }
  try {
    verify_sealed(path);
  } catch (const DataError& error) {
    log_warn("{}; it is set aside as *.damaged", error.what());
    std::filesystem::rename(path, path.string() + ".damaged");
  }
}

void tell_losses(const ImportReport& report, const std::filesystem::path& store) {
  const std::string losses = report.losses();
  if (!report.unreadable.empty()) {
    log_warn("{}; all of them: {}.quarantine", losses, store.string());
  } else if (!losses.empty()) {
    log_info("{}", losses);
  }
}

}  // namespace

PromptImportConfig ImportPhase::import_config() const {
  PromptImportConfig prompts = config_.prompts;
  prompts.seed = config_.run.seed;
  prompts.expected_digest = lost_digest_;
  return prompts;
}

PromptEncoder ImportPhase::encoder() const {
  return make_prompt_encoder(
      BytePairTokenizer::load(config_.model.source),
      ChatTemplate::load(config_.model.source, config_.prompts.template_options()),
      config_.prompts.system);
}

void ImportPhase::check() const {
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() != 0) {
      return;
    }
    const std::optional<PromptStore> opened = open_or_set_aside(layout_.prompts());
    if (!opened) {
      set_damaged_report_aside(layout_.prompts_report());
      return;
    }
    const PromptStore& store = *opened;
    const std::string expected = import_identity(import_config(), encoder());
    if (store.identity() != expected) {
      throw ConfigError(fmt::format(
          "{} was imported with other settings or another chat template (import identity {}, this "
          "configuration and model have {}); use another run.directory",
          layout_.prompts().string(), store.identity(), expected));
    }
    const std::string report = seal_json(store.report() + "\n");
    if (!holds(layout_.prompts_report(), report)) {
      log_warn("{} is lost or damaged and is written again from {}",
               layout_.prompts_report().string(), layout_.prompts().string());
      publish_file(layout_.prompts_report(), report);
    }
  }));
}

void ImportPhase::identify(Identity& identity) const {
  std::string digest;
  static_cast<void>(agree(services_.comm, false, [&] {
    if (services_.comm.rank() == 0 && std::filesystem::exists(layout_.prompts())) {
      digest = PromptStore::open(layout_.prompts(), SealCheck::size).digest();
    }
  }));
  digest = broadcast_text(services_.comm, digest, 0);
  if (!digest.empty()) {
    identity[kPromptsDigest] = digest;
  }
}

std::optional<std::string> ImportPhase::expect_prompts_of(const Checkpoint& checkpoint,
                                                          const Identity& present) {
  const Identity& trained = checkpoint.manifest.state.identity;
  const auto recorded = trained.find(kPromptsDigest);
  if (recorded == trained.end()) {
    return std::nullopt;
  }
  const auto found = present.find(kPromptsDigest);
  if (found == present.end()) {
    lost_digest_ = recorded->second;
    log_warn("{} is lost: the prompts are imported anew where a round still needs them",
             layout_.prompts().string());
  } else if (found->second != recorded->second) {
    throw DataError(fmt::format(
        "{} holds other prompts (digest {}) than {} was trained on ({}); put the file back, or "
        "remove it and run again: the prompts are then imported anew from prompts.files",
        layout_.prompts().string(), found->second, checkpoint.directory.string(),
        recorded->second));
  }
  return lost_digest_;
}

bool ImportPhase::run() {
  services_.clock.enter("import");
  bool stopped = false;
  together(services_.comm, [&] {
    if (services_.comm.rank() != 0) {
      return;
    }
    try {
      const ImportReport report = import_prompts(
          import_config(), encoder(), layout_.prompts(), [&](const ImportProgress& now) {
            if (services_.on_import) {
              services_.on_import(now);
            }
            if (stop_requested()) {
              throw Interrupted("the import was stopped; run again to start it anew");
            }
          });
      publish_file(layout_.prompts_report(), seal_json(report.to_json() + "\n"));
      log_info("{} prompts read from {} file{}, {} kept; {:.1f} MB at {:.1f} MB/s, {} tokens",
               report.records, report.files.size(), report.files.size() == 1 ? "" : "s",
               report.kept, static_cast<double>(report.bytes) / 1e6,
               static_cast<double>(report.bytes) / 1e6 / std::max(1e-9, report.seconds),
               report.tokens);
      tell_losses(report, layout_.prompts());
    } catch (const Interrupted& interruption) {
      log_warn("{}", interruption.what());
      stopped = true;
    }
  });
  return !agree(services_.comm, stopped || stop_requested(), {});
}

}  // namespace jforge
