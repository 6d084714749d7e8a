#include "model/decoding/batch_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "runtime/error.h"
#include "runtime/phase_clock.h"

namespace jforge {

BatchDecoder::BatchDecoder(DecodeModel& model, std::int32_t batch_prompts) : model_(model) {
  const std::int32_t count = std::min(batch_prompts, model.num_slots());
  if (count < 1) {
    throw ConfigError(fmt::format(
        "batch decoding: {} sequences at once over {} cache slots; both must be at least 1",
        batch_prompts, model.num_slots()));
  }
  slots_.resize(static_cast<std::size_t>(count));
}

void BatchDecoder::run(const Source& source, const Sink& sink, const StopRequested& stop_requested,
                       const StepDone& step_done) {
  for (Slot& slot : slots_) {
    slot.decoder.reset();
  }
  while (refill(source)) {
    assemble_rows();
    forward_rows();
    hand_back(sink);
    note_progress();
    if (step_done) {
      step_done();
    }
    if (stop_requested && stop_requested()) {
      for (Slot& slot : slots_) {
        slot.decoder.reset();
      }
      return;
    }
  }
}

bool BatchDecoder::refill(const Source& source) {
  bool busy = false;
  bool exhausted = false;
  for (Slot& slot : slots_) {
    if (!slot.decoder && !exhausted) {
      slot.decoder = source();
      exhausted = slot.decoder == nullptr;
      if (slot.decoder && slot.decoder->max_positions() > model_.slot_capacity()) {
        throw DataError(
            fmt::format("prompt {} needs {} positions (prompt and new tokens), a cache slot holds "
                        "{}; shorten the "
                        "prompt, lower max_new_tokens or raise the slot capacity",
                        slot.decoder->id(), slot.decoder->max_positions(), model_.slot_capacity()));
      }
      slot.forwarded = 0;
      slot.prefilling = true;
      slot.predictions.clear();
    }
    busy = busy || slot.decoder != nullptr;
  }
  return busy;
}

void BatchDecoder::assemble_rows() {
  rows_.clear();
  outputs_ = 0;
  prefill_rows_ = 0;
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    slots_[index].chunk = 0;
    if (slots_[index].decoder && !slots_[index].prefilling) {
      append_rows(index, slots_[index].decoder->pending().size());
    }
  }
  const std::size_t room = kStepRows - std::min(kStepRows, rows_.size());
  std::size_t budget = std::max(room, kMinimumPrefillRows);
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].decoder && slots_[index].prefilling) {
      append_rows(index, budget);
      budget -= slots_[index].chunk;
      prefill_rows_ += slots_[index].chunk;
    }
  }
}

void BatchDecoder::append_rows(std::size_t slot_index, std::size_t limit) {
  Slot& slot = slots_[slot_index];
  const auto pending = slot.decoder->pending();
  expect(!pending.empty(), "an unfinished decoder has nothing to forward");
  const std::size_t first_output = slot.decoder->first_output();
  slot.chunk = std::min(pending.size() - slot.forwarded, limit);
  for (std::size_t i = slot.forwarded; i < slot.forwarded + slot.chunk; ++i) {
    const auto position = slot.decoder->kv_length() + static_cast<std::int64_t>(i);
    expect(position < model_.slot_capacity(), "a decoder ran past its own max_positions()");
    const bool wants_output = i >= first_output;
    rows_.push_back({.token = pending[i],
                     .place = {.slot = static_cast<std::int32_t>(slot_index),
                               .position = static_cast<std::int32_t>(position)},
                     .wants_output = wants_output});
    outputs_ += wants_output ? 1 : 0;
  }
}

void BatchDecoder::forward_rows() {
  predictions_.resize(outputs_);
  const auto begin = std::chrono::steady_clock::now();
  model_.predict(rows_, predictions_);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const double prefill_share =
      static_cast<double>(prefill_rows_) / static_cast<double>(rows_.size());
  statistics_.steps += 1;
  statistics_.rows += static_cast<std::int64_t>(rows_.size());
  statistics_.prefill_rows += static_cast<std::int64_t>(prefill_rows_);
  statistics_.prefill_seconds += elapsed.count() * prefill_share;
  statistics_.decode_seconds += elapsed.count() * (1.0 - prefill_share);
}

void BatchDecoder::hand_back(const Sink& sink) {
  std::size_t output = 0;
  for (const DecodeRow& row : rows_) {
    if (row.wants_output) {
      slots_[static_cast<std::size_t>(row.place.slot)].predictions.push_back(
          predictions_[output++]);
    }
  }
  for (Slot& slot : slots_) {
    if (!slot.decoder) {
      continue;
    }
    slot.forwarded += slot.chunk;
    if (slot.forwarded < slot.decoder->pending().size()) {
      continue;
    }
    const std::int64_t known = slot.decoder->kv_length();
    slot.decoder->advance(slot.predictions);
    if (!slot.prefilling) {
      statistics_.tokens += slot.decoder->kv_length() - known;
      statistics_.forwards += 1;
    }
    slot.forwarded = 0;
    slot.prefilling = false;
    slot.predictions.clear();
    if (slot.decoder->finished()) {
      const auto finished = std::move(slot.decoder);
      sink(finished->take_result());
    }
  }
}

}  // namespace jforge
