#include "checkpoints/checkpoint_writer.h"

#include <fmt/format.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "checkpoints/checkpoint_reader.h"
#include "runtime/background_thread.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/failure_agreement.h"
#include "runtime/content_hash.h"
#include "runtime/durable_file.h"
#include "runtime/error.h"
#include "runtime/fault_injection.h"
#include "runtime/log.h"

namespace jforge {

namespace {
std::string draw_nonce() {
  // Distinguishes the files of different writers; affects no result.
  std::random_device device;
  const std::uint64_t high = device();
  return hash_hex((high << 32) ^ device());
}

/// Removes the manifest first, durably.
void remove_checkpoint(const std::filesystem::path& directory) {
  std::error_code reason;
  if (std::filesystem::remove(directory / kManifestName, reason)) {
    sync_directory(directory);
  }
  if (!reason) {
    std::filesystem::remove_all(directory, reason);
  }
  if (reason) {
    throw EnvironmentError(
        fmt::format("cannot remove {}: {}", directory.string(), reason.message()));
  }
}

struct CopyPart {
  std::span<const float> source;
  float* target = nullptr;
  const char* what = nullptr;
  std::size_t tensor = 0;
};

/// Exponent bits of infinities and NaNs.
constexpr std::uint32_t kNotFinite = 0x7f800000U;

bool copy_plainly(std::span<const float> source, float* target) {
  std::uint32_t bad = 0;
  for (const float value : source) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kNotFinite) ==
                                      kNotFinite);
    *target++ = value;
  }
  return bad == 0;
}

/// Returns whether every value is finite. Streaming stores avoid fetching the target.
bool copy_finite(std::span<const float> source, float* target) {
#if defined(__SSE2__)
  constexpr std::size_t kLanes = 4;
  constexpr std::size_t kLine = 4 * kLanes;
  const std::size_t misaligned = std::bit_cast<std::uintptr_t>(target) / sizeof(float) % kLanes;
  const std::size_t head = std::min(source.size(), (kLanes - misaligned) % kLanes);
  bool finite = copy_plainly(source.first(head), target);
  source = source.subspan(head);
  target += head;
  const __m128i mask = _mm_set1_epi32(kNotFinite);
  __m128i bad = _mm_setzero_si128();
  for (; source.size() >= kLine; source = source.subspan(kLine), target += kLine) {
    for (std::size_t i = 0; i < kLine; i += kLanes) {
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&source[i]));
      bad = _mm_or_si128(bad, _mm_cmpeq_epi32(_mm_and_si128(values, mask), mask));
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), values);
    }
  }
  _mm_sfence();
  finite = _mm_movemask_epi8(bad) == 0 && finite;
  return copy_plainly(source, target) && finite;
#else
  return copy_plainly(source, target);
#endif
}

/// Returns the index of the first part with a non-finite value, or the number of parts. Uses
/// threads because training waits and one thread does not saturate the memory bus.
std::size_t copy_parts(std::span<const CopyPart> parts) {
  constexpr unsigned kMostThreads = 4;
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> bad{parts.size()};
  const auto work = [&] {
    for (std::size_t i = next++; i < parts.size(); i = next++) {
      if (!copy_finite(parts[i].source, parts[i].target)) {
        std::size_t first = bad.load();
        while (i < first && !bad.compare_exchange_weak(first, i)) {
        }
      }
    }
  };
  std::vector<std::thread> helpers;
  const unsigned threads = std::min(kMostThreads, std::thread::hardware_concurrency());
  try {
    while (helpers.size() + 1 < threads && helpers.size() + 1 < parts.size()) {
      helpers.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // Fewer helpers: slower, same result.
  }
  work();
  for (std::thread& helper : helpers) {
    helper.join();
  }
  return bad;
}

}  // namespace

void CheckpointConfig::validate() const {
  if (every_steps < 1) {
    throw ConfigError(fmt::format("checkpoint.every_steps = {} must be at least 1", every_steps));
  }
  if (keep_last < 1) {
    throw ConfigError(fmt::format("checkpoint.keep_last = {} must be at least 1", keep_last));
  }
  if (keep_every < 0) {
    throw ConfigError(fmt::format(
        "checkpoint.keep_every = {} must not be negative (0 keeps none for ever)", keep_every));
  }
}

CheckpointWriter::CheckpointWriter(const Communicator& comm, std::filesystem::path root,
                                   const CheckpointConfig& config, MemoryAccount& account)
    : comm_(comm), root_(std::move(root)), config_(config), account_(account) {
  static_cast<void>(agree(comm_, false, [&] {
    config_.validate();
    if (comm_.rank() == 0) {
      make_directory(root_);
      sweep_temporaries(root_);
      nonce_ = draw_nonce();
    }
  }));
  nonce_ = broadcast_text(comm_, nonce_, 0);
}

CheckpointWriter::~CheckpointWriter() {
  if (stage_ != Stage::writing) {
    join();
    return;
  }
  // No commit is possible without the other ranks.
  awaited_.store(true);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CheckpointWriter::save(const CheckpointState& state, const TrainingStateView& view) {
  finish();
  std::string decision;
  static_cast<void>(agree(comm_, false, [&] {
    shards_ = view.table.shard_count();
    expect(comm_.size() % shards_ == 0,
           "the table's shard count does not divide the number of ranks");
    if (comm_.rank() == 0) {
      decision = already_saved(state, view) ? "keep" : "write";
      if (decision == "write") {
        make_directory(root_ / checkpoint_directory_name(state.round, state.step));
      }
    }
  }));
  if (broadcast_text(comm_, decision, 0) == "keep") {
    return;
  }
  state_ = state;
  const bool writes = writer_of(comm_.rank() % shards_) == comm_.rank();
  static_cast<void>(agree(comm_, false, [&] {
    if (writes) {
      snapshot(view);
    }
  }));
  start(Stage::writing, writes);
}

Rank CheckpointWriter::writer_of(int shard) const {
  const int copies = comm_.size() / shards_;
  return shard % copies * shards_ + shard;
}

bool CheckpointWriter::poll() {
  if (stage_ == Stage::none) {
    return true;
  }
  std::int32_t unfinished = done_.load() ? 0 : 1;
  all_reduce_max<std::int32_t>(comm_, std::span(&unfinished, 1));
  if (unfinished == 0) {
    end_stage();
  }
  return stage_ == Stage::none;
}

void CheckpointWriter::finish() {
  while (stage_ != Stage::none) {
    end_stage();
  }
}

bool CheckpointWriter::already_saved(const CheckpointState& state,
                                     const TrainingStateView& view) const {
  const std::filesystem::path directory =
      root_ / checkpoint_directory_name(state.round, state.step);
  if (!std::filesystem::exists(directory)) {
    return false;
  }
  std::optional<Checkpoint> found;
  try {
    found = open_checkpoint(directory);
  } catch (const DataError& error) {
    log_info("replacing an invalid checkpoint: {}", error.what());
    remove_checkpoint(directory);
    return false;
  }
  const CheckpointManifest& manifest = found->manifest;
  if (manifest.state.identity != state.identity ||
      manifest.has_moments != !view.first_moment.empty() ||
      manifest.tensors != checkpoint_tensors(view.table)) {
    throw ConfigError(fmt::format(
        "{} holds a valid checkpoint of another run; use another run.directory or remove it",
        directory.string()));
  }
  log_info("checkpoint {} exists already and is valid", directory.string());
  return true;
}

void CheckpointWriter::snapshot(const TrainingStateView& view) {
  has_moments_ = !view.first_moment.empty() || !view.second_moment.empty();
  tensors_ = checkpoint_tensors(view.table);
  slices_ = shard_slices(view.table, comm_.rank() % shards_);
  slice_elements_ = 0;
  for (const ShardSlice& slice : slices_) {
    slice_elements_ += static_cast<std::size_t>(slice.size());
  }
  constexpr std::size_t kAligned = DirectFile::kAlignment / sizeof(float);
  const std::size_t stride = (slice_elements_ + kAligned - 1) / kAligned * kAligned;
  const std::size_t bytes = ((has_moments_ ? 3 : 1) * stride + kAligned) * sizeof(float);
  if (copy_.bytes() < bytes) {
    copy_ = Buffer();  // Freed before the larger allocation.
    copy_ = Buffer(bytes, account_);
  }
  void* start = copy_.data();
  std::size_t space = copy_.bytes();
  expect(
      std::align(DirectFile::kAlignment, bytes - DirectFile::kAlignment, start, space) != nullptr,
      "the copy of a checkpoint is too small");
  auto* const copy = static_cast<float*>(start);

  std::vector<CopyPart> parts;
  const auto add = [&](const ConstTensorView& state, float* target, const char* what) {
    const bool whole = state.elements() == view.table.flat_size();
    expect_shape(state, {whole ? view.table.flat_size() : shard_vector_size(view.table)}, what);
    const auto begin = whole ? &ShardSlice::flat_begin : &ShardSlice::shard_begin;
    constexpr std::size_t kPart = std::size_t{1} << 18;
    for (const ShardSlice& slice : slices_) {
      const auto size = static_cast<std::size_t>(slice.size());
      const ConstTensorView from = state.rows(slice.*begin, slice.*begin + slice.size());
      // copy_parts() then checks the copy in place.
      if (from.device() != Device::cpu) {
        copy_tensor(from, TensorView(target, from.shape()));
      }
      const std::span<const float> values =
          from.device() == Device::cpu ? from.span<float>() : std::span<const float>(target, size);
      for (std::size_t done = 0; done < size; done += kPart) {
        const std::size_t part = std::min(kPart, size - done);
        parts.push_back({values.subspan(done, part), target, what, slice.entry});
        target += part;
      }
    }
  };
  add(view.weights, copy, "weight");
  values_ = {{copy, slice_elements_}, {}, {}};
  if (has_moments_) {
    add(view.first_moment, copy + stride, "first moment");
    add(view.second_moment, copy + 2 * stride, "second moment");
    values_.first_moment = {copy + stride, slice_elements_};
    values_.second_moment = {copy + 2 * stride, slice_elements_};
  }
  if (const std::size_t bad = copy_parts(parts); bad < parts.size()) {
    throw NumericalError(
        fmt::format("{} of {} is not finite: not saved; resume from the last checkpoint",
                    parts[bad].what, tensors_[parts[bad].tensor].name));
  }
  const ShardOwner owner{state_.round, state_.step, shards_, comm_.rank() % shards_, nonce_};
  shard_writer_.emplace(root_ / checkpoint_directory_name(state_.round, state_.step), owner,
                        slices_, values_);
}

void CheckpointWriter::start(Stage stage, bool has_work) {
  stage_ = stage;
  done_.store(!has_work);
  awaited_.store(false);
  failure_ = nullptr;
  if (!has_work) {
    return;
  }
  const auto work = [this] {
    yield_to_other_threads();
    while (!awaited_.load() && work_some()) {
    }
  };
  try {
    thread_ = std::thread(work);
  } catch (const std::system_error& error) {
    log_warn("no thread for the checkpoint ({}): it is written with the next one or at the end",
             error.what());
  }
}

bool CheckpointWriter::work_some() noexcept {
  const std::scoped_lock lock(working_);
  if (done_.load()) {
    return false;
  }
  bool more = false;
  try {
    if (stage_ == Stage::writing) {
      more = shard_writer_->advance();
    } else {
      commit_checkpoint(root_ / checkpoint_directory_name(state_.round, state_.step), manifest_);
      prune(state_);
    }
  } catch (...) {
    failure_ = std::current_exception();
  }
  done_.store(!more);
  return more;
}

void CheckpointWriter::join() noexcept {
  // On busy cores the low-priority thread might never finish.
  awaited_.store(true);
  while (stage_ != Stage::none && work_some()) {
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CheckpointWriter::end_stage() {
  join();
  const Stage ended = std::exchange(stage_, Stage::none);
  together(comm_, [&] {
    if (failure_) {
      shard_writer_.reset();
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
  });
  if (ended != Stage::writing) {
    return;
  }
  const std::vector<std::string> shards =
      gather_texts(comm_, shard_writer_ ? shard_to_json(shard_writer_->shard()) : std::string(), 0);
  together(comm_, [&] {
    if (comm_.rank() == 0) {
      manifest_ = {};
      manifest_.state = state_;
      manifest_.world_size = shards_;
      manifest_.has_moments = has_moments_;
      manifest_.nonce = nonce_;
      manifest_.tensors = tensors_;
      for (int shard = 0; shard < shards_; ++shard) {
        manifest_.shards.push_back(
            shard_from_json(shards[static_cast<std::size_t>(writer_of(shard))]));
      }
    }
  });
  start(Stage::committing, comm_.rank() == 0);
}

void CheckpointWriter::prune(const CheckpointState& newest) const {
  try {
    for (const std::string& name : prune_checkpoints(root_, newest.round, newest.step, config_)) {
      log_debug("removed checkpoint {}", name);
    }
  } catch (const EnvironmentError& error) {
    // The new checkpoint is durable already.
    log_warn("old checkpoints stay: {}", error.what());
  }
}

void commit_checkpoint(const std::filesystem::path& directory, const CheckpointManifest& manifest) {
  const std::string text = manifest.to_json();
  // A manifest that readers would reject must not be published.
  expect(CheckpointManifest::from_json(text, "the manifest to be written") == manifest,
         "a checkpoint manifest does not survive its own format");
  fault_point("checkpoint.manifest");
  publish_file(directory / kManifestName, text);
}

std::vector<std::string> prune_checkpoints(const std::filesystem::path& root,
                                           std::int64_t newest_round, std::int64_t newest_step,
                                           const CheckpointConfig& config) {
  std::vector<std::string> removed;
  std::int64_t kept = 1;  // The newest itself.
  bool has_start_of_round = false;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    if (std::pair(directory.round, directory.step) >= std::pair(newest_round, newest_step)) {
      continue;
    }
    bool keep = false;
    try {
      static_cast<void>(read_manifest(directory.path));
      const bool milestone = config.keep_every > 0 && directory.step % config.keep_every == 0;
      const bool start_of_round = !has_start_of_round && directory.round == newest_round - 1;
      has_start_of_round = has_start_of_round || start_of_round;
      keep = kept < config.keep_last || milestone || start_of_round;
      kept += kept < config.keep_last ? 1 : 0;
    } catch (const DataError&) {
      keep = false;
    } catch (const EnvironmentError& error) {
      // It may be valid; a later prune decides.
      log_warn("{} is kept: {}", directory.path.string(), error.what());
      keep = true;
    }
    if (!keep) {
      fault_point("checkpoint.prune");
      remove_checkpoint(directory.path);
      removed.push_back(directory.path.filename().string());
    }
  }
  return removed;
}

std::string abandon(const std::filesystem::path& path) {
  const std::string name = path.string() + ".abandoned";
  std::string target = name;
  for (int number = 2; std::filesystem::exists(target); ++number) {
    target = fmt::format("{}-{}", name, number);
  }
  commit_rename(path, target);
  return std::filesystem::path(target).filename().string();
}

std::vector<std::string> abandon_checkpoints_after(const std::filesystem::path& root,
                                                   std::int64_t round, std::int64_t step) {
  std::vector<std::string> abandoned;
  for (const CheckpointDirectory& directory : list_checkpoint_directories(root)) {
    if (std::pair(directory.round, directory.step) <= std::pair(round, step)) {
      break;  // Newest first.
    }
    abandoned.push_back(abandon(directory.path));
  }
  return abandoned;
}

}  // namespace jforge
