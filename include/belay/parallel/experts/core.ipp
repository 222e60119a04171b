// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts, messages and steps of an expert exchange.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/parallel/experts/core.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t row_message_store::take(std::size_t ranges) {
  if (free_.empty()) {
    all_.push_back({std::vector<row_range>(ranges), std::vector<row_range>(ranges)});
    free_.reserve(all_.size());
    return all_.size() - 1;
  }
  const std::size_t index = free_.back();
  free_.pop_back();
  return index;
}

BELAY_DECL void row_message_store::reclaim() noexcept {
  free_.clear();
  for (std::size_t index = all_.size(); index-- > 0;) free_.push_back(index);
}

BELAY_DECL row_moves::row_moves(const expert_shape& shape, row_transport by, std::size_t row_bytes)
    : shape_(shape),
      by_(by),
      row_bytes_(row_bytes),
      selections_(shape.ranks * shape.experts),
      cursor_(shape.experts),
      ends_(shape.local() + 1),
      shifts_(shape.experts),
      gather_counts_(shape.ranks, shape.experts) {
  if (by == row_transport::sent) transfers_.reserve(2 * shape.experts);
}

BELAY_DECL void row_moves::add_counts(std::int64_t* totals) const noexcept {
  for (std::size_t e = 0; e < shape_.experts; ++e) {
    std::int64_t total = 0;
    for (std::size_t source = 0; source < shape_.ranks; ++source) total += selected()(source, e);
    totals[e] = total;
  }
}

template <class Ranks>
void row_moves::gather(const Ranks& ranks, std::size_t choices, where at) {
  if constexpr (checked(check_level::local)) expect_counts(view<const std::int64_t, 1>(own_selections()), choices, at);
  ranks.all_gather_v(std::span<std::int64_t>(selections_), gather_counts_, at);
}

BELAY_DECL void row_moves::count(const group_calls* calls, const moved_rows& rows, where at) {
  shape_.capacity = rows.capacity;
  for (std::size_t e = 0; e < shape_.experts; ++e) own_selections()[e] = rows.counts[e];
  if (calls != nullptr)
    gather(*calls, rows.choices.size(), at);
  else if constexpr (checked(check_level::local))
    expect_counts(view<const std::int64_t, 1>(own_selections()), rows.choices.size(), at);
  add_counts(rows.global_counts);
  needed_now_ = rows_needed(shape_, selected());
  note_needed(needed_now_);
  if (needed_now_ > shape_.capacity) kernel::findings_note{rows.found, {}}.need_rows(needed_now_);
  expert_offsets(shape_, selected(), {rows.offsets, {shape_.local() + 1}});
  if (by_ == row_transport::mirrored) expert_cuts(shape_, selected(), {rows.cuts, {shape_.local(), shape_.ranks - 1}});
  expert_places(shape_, selected(), rows.choices, cursor(), {rows.places, rows.choices.shape()});
}

BELAY_DECL void row_moves::to_experts(const group_calls* calls, const moved_rows& rows, where at) {
  if (calls == nullptr) return;
  if (by_ == row_transport::mirrored) {
    for (std::size_t i = 0; i < rows.choices.size(); ++i) {
      const std::int32_t place = rows.places[i];
      if (place == no_place) continue;
      const auto owner = static_cast<std::size_t>(rows.choices.data()[i]) / shape_.local();
      rows.heap->put_bytes(static_cast<int>(owner), rows.first_byte + static_cast<std::size_t>(place) * row_bytes_,
                           row_bytes_);
    }
  }
  rows.heap->synchronize_in(*calls, at);
}

BELAY_DECL void row_moves::to_tokens(const group_calls* calls, const moved_rows& rows, where at) {
  if (calls == nullptr) return;
  if (by_ == row_transport::mirrored) {
    const view<const std::size_t, 1> offsets{rows.offsets, {shape_.local() + 1}};
    const view<const std::size_t, 2> cuts{rows.cuts, {shape_.local(), shape_.ranks - 1}};
    for (std::size_t peer = 0; peer < shape_.ranks; ++peer) {
      for (std::size_t i = 0; i < shape_.local(); ++i) {
        const auto [first, end] = rows_from(peer, i, offsets, cuts);
        rows.heap->give_bytes(static_cast<int>(peer), rows.first_byte + first * row_bytes_, (end - first) * row_bytes_);
      }
    }
  }
  rows.heap->synchronize_in(*calls, at);
}

BELAY_DECL void row_moves::come_to(std::uint64_t number, where at) {
  if (come_to_[number % queued_moves].exchange(number, std::memory_order_relaxed) == ~number)
    throw usage_error("rows of experts were moved before the compute stream had come to the move", at);
}

BELAY_DECL bool row_moves::was_skipped(std::uint64_t number) noexcept {
  if (number == 0) return false;
  std::atomic<std::uint64_t>& come = come_to_[number % queued_moves];
  std::uint64_t known = come.load(std::memory_order_relaxed);
  return known != number && come.compare_exchange_strong(known, ~number, std::memory_order_relaxed);
}

BELAY_DECL void row_moves::move_nothing(const group_calls& calls, const moved_rows& rows, row_direction direction,
                                        where at) {
  if (direction == row_direction::dispatched) {
    const view<std::int64_t, 1> own = own_selections();
    std::fill_n(own.data(), own.size(), std::int64_t{0});
    gather(calls, 0, at);
  }
  rows.heap->synchronize_in(calls, at);
}

BELAY_DECL void row_moves::count_on_device(const group_calls& calls, const moved_rows& rows, where at) {
  calls.device()->fetch(own_selections().data(), rows.counts, shape_.experts * sizeof(std::int64_t), at);
  shape_.capacity = rows.capacity;
  gather(calls.control(), rows.choices.size(), at);
  needed_now_ = rows_needed(shape_, selected());
  note_needed(needed_now_);
}

BELAY_DECL void row_moves::count_to_send(const group& ranks, const moved_rows& rows, const start_order& how) {
  ranks.device()->fetch(own_selections().data(), rows.counts, shape_.experts * sizeof(std::int64_t), how);
  shape_.capacity = rows.capacity;
  gather(ranks.control(), rows.choices.size(), how.at);
  needed_now_ = rows_needed(shape_, selected());
  note_needed(needed_now_);
  row_messages& now = messages[rows.dispatch];
  expert_starts(shape_, selected(), cursor());
  rows_sent(shape_, selected(), cursor(), {now.sent.data(), {shape_.experts}});
  rows_received_of(shape_, selected(), {now.received.data(), {shape_.ranks, shape_.local()}});
}

BELAY_DECL void row_moves::place_counts(const group_calls& calls, const moved_rows& rows, where at) {
  group_memory& device = *calls.device();
  expert_offsets(shape_, selected(), {ends_.data(), {ends_.size()}});
  device.place(rows.offsets, ends_.data(), ends_.size() * sizeof(std::size_t), at);
  expert_starts(shape_, selected(), cursor());
  expert_shifts(shape_, selected(), cursor(), {shifts_.data(), {shifts_.size()}});
  device.place(rows.cuts, shifts_.data(), shifts_.size() * sizeof(std::int32_t), at);
  add_counts(cursor_.data());
  device.place(rows.global_counts, cursor_.data(), cursor_.size() * sizeof(std::int64_t), at);
}

BELAY_DECL void row_moves::send_rows(const group_calls& calls, const moved_rows& rows, p2p::direction packed,
                                     function_ref<void(void*, const void*, std::size_t)> copy, where at) {
  const row_messages& now = messages[rows.dispatch];
  const p2p::direction slot = packed == p2p::direction::send ? p2p::direction::receive : p2p::direction::send;
  std::byte* const slot_rows = rows.heap->base(0) + rows.first_byte;
  const auto message = [&](p2p::direction kind, std::size_t peer, std::byte* memory, const row_range& range) {
    if (range.first == range.end) return;
    transfers_.push_back(
        {kind, static_cast<int>(peer), memory + range.first * row_bytes_, (range.end - range.first) * row_bytes_});
  };
  transfers_.clear();
  for (std::size_t peer = 0; peer < shape_.ranks; ++peer) {
    for (std::size_t i = 0; i < shape_.local(); ++i) {
      const row_range &mine = now.sent[peer * shape_.local() + i], &theirs = now.received[peer * shape_.local() + i];
      if (peer != shape_.rank) {
        message(packed, peer, rows.packed, mine);
        message(slot, peer, slot_rows, theirs);
      } else if (mine.first < mine.end) {
        std::byte* const here = rows.packed + mine.first * row_bytes_;
        std::byte* const there = slot_rows + theirs.first * row_bytes_;
        const std::size_t bytes = (mine.end - mine.first) * row_bytes_;
        if (packed == p2p::direction::send)
          copy(there, here, bytes);
        else
          copy(here, there, bytes);
      }
    }
  }
  calls.exchange(transfers_, at);
}

BELAY_DECL const belay::group& exchange_core::expect_reach(const belay::group& ranks, where at) {
  const group_traits& of = ranks.traits();
  if (!of.addresses_peers && !of.mirrors_peers && !of.has_local_memory)
    throw usage_error(
        "experts are reached through symmetric memory, or memory that peers send into: take a group that is "
        "directly_addressable, mirrored_by_messages or has_local_memory, as those of all backends are",
        at);
  if (!of.has_varying_counts)
    throw usage_error(
        "the ranks of an expert exchange gather their counts with all_gather_v: take a communicator with "
        "has_varying_counts, as belay::host and belay::mpi have",
        at);
  return ranks;
}

BELAY_DECL exchange_core::exchange_core(const belay::group& ranks, symmetric_heap<belay::group>& heap,
                                        const expert_settings& settings, std::size_t element_bytes, where at)
    : heap_(&heap),
      group_(expect_reach(ranks, at)),
      shape_(shape_of(settings, static_cast<std::size_t>(ranks.size()), static_cast<std::size_t>(ranks.unasked_rank()),
                      at)),
      element_bytes_(element_bytes),
      by_(shape_.ranks == 1       ? row_transport::here
          : sends_to_peers(ranks) ? row_transport::sent
          : mirrors_peers(ranks)  ? row_transport::mirrored
                                  : row_transport::addressed) {
  set_capacity(settings.capacity, at);
  moves_ = std::make_shared<row_moves>(shape_, by_, shape_.hidden * element_bytes);
}

BELAY_DECL void exchange_core::belong_to_run(computes_on processor) noexcept {
  part_ = participation::waits;
  if (shape_.ranks > 1 && processor == computes_on::own_device) by_ = row_transport::sent;
}

BELAY_DECL void exchange_core::prepare(std::size_t first_layer, std::size_t layers, std::size_t micro_batches,
                                       where at) {
  prepare(first_layer, {layers, micro_batches, shape_.experts, shape_.k, at});
}
BELAY_DECL void exchange_core::prepare(std::size_t first_layer, expert_statistics statistics) {
  std::vector<std::size_t> layers(statistics.layers());
  std::iota(layers.begin(), layers.end(), first_layer);
  prepare(layers, std::move(statistics));
}
BELAY_DECL void exchange_core::prepare(std::span<const std::size_t> layers, expert_statistics statistics) {
  layers_.assign(layers.begin(), layers.end());
  moves_->statistics = std::move(statistics);
}
BELAY_DECL std::size_t exchange_core::entry_of(std::size_t layer) const noexcept {
  const auto found = std::find(layers_.begin(), layers_.end(), layer);
  return found != layers_.end() ? static_cast<std::size_t>(found - layers_.begin()) : greater_of(layer, layers_.size());
}

BELAY_DECL void exchange_core::begin_step(where at) {
  if constexpr (checked(check_level::local))
    if (unread_) throw usage_error("the overflow of the last step's expert dispatches was never read", at);
  moves_->statistics.clear();
  moves_->messages.reclaim();
  heap_->reclaim();
}

BELAY_DECL void exchange_core::begin(const step_start&, where at) {
  withdraw();
  named_ = true;
  if (part_ == participation::waits) part_ = participation::takes;
  begin_step(at);
}
BELAY_DECL void exchange_core::finish(const divisor_value&, where) noexcept { end_part(); }
BELAY_DECL void exchange_core::abandon(where) noexcept { withdraw(); }
BELAY_DECL void exchange_core::withdraw() noexcept {
  static_cast<void>(take_overflow());
  end_part();
}
BELAY_DECL ballot exchange_core::findings() noexcept {
  static_cast<void>(take_overflow());
  return {};
}
BELAY_DECL void exchange_core::end_part() noexcept {
  named_ = false;
  part_ = part_ == participation::unasked ? participation::unasked : participation::waits;
}

BELAY_DECL std::uint64_t exchange_core::fingerprint() const noexcept {
  return fnv1a().add_text("expert_exchange").add(shape_.experts).add(shape_.k).add(shape_.capacity).value();
}
BELAY_DECL void exchange_core::make_room(std::size_t rows, where at) {
  const std::size_t wanted = rows + rows / 8;
  if (wanted > shape_.capacity) set_capacity(wanted, at);
}
BELAY_DECL expert_overflow exchange_core::take_overflow() noexcept {
  unread_ = false;
  return {moves_->take_needed(), shape_.capacity};
}
BELAY_DECL void exchange_core::set_capacity(std::size_t rows, where at) {
  expect_capacity(shape_, rows, element_bytes_, at);
  shape_.capacity = rows;
}

BELAY_DECL void exchange_core::expect_dispatch(const char* layer, std::size_t experts, std::size_t k, where at) const {
  if (part_ == participation::waits) [[unlikely]]
    throw usage_error(
        "dispatch: layer '" + printable(layer) +
            "' uses an expert exchange that its step does not name: belay::step step{run.engine(), store, experts}",
        at);
  if (experts != shape_.experts || k != shape_.k)
    throw usage_error("dispatch: the routing is over other experts than the exchange", at);
}

BELAY_DECL start_order exchange_core::order_after(const stream_event& ready, where at) const {
  return start_order(after(ready, at)).keeping(moves_);
}

}  // namespace belay::inline BELAY_ABI
