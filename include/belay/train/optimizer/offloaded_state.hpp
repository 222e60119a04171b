// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// State of an optimizer in a lower tier, and its update where it lives: the gradients and values of a chunk are copied
// into a slot of a ring while the chunk before is updated and the one before that is copied back. State in a file comes
// into the slot with them, and is written from there. Where the slots are a device's, so does state of any lower tier,
// and that in a file passes through slots of the host beside them.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/slot_ring.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/kernel/chunked_ranges.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/train/optimizer/update.hpp"

namespace belay::inline BELAY_ABI {

/// The state of an optimizer in chunks of one size, in which it streams through a ring: an element for each that the
/// rank owns, in the order of its ranges.
class state_chunks {
 public:
  /// Where a chunk begins: an element of a range, and one of the state.
  struct chunk {
    std::size_t range = 0, offset = 0;
    std::size_t first = 0, count = 0;
  };

  state_chunks() = default;
  /// Of `most` elements each, but for the last.
  template <class T>
  state_chunks(std::span<const owned_range<T>> owned, std::size_t most) {
    chunk next;
    for (std::size_t r = 0; r < owned.size(); ++r)
      for (std::size_t done = 0; done < owned[r].count;) {
        if (next.count == 0) next = {r, done, next.first, 0};
        const std::size_t taken = lesser_of(most - next.count, owned[r].count - done);
        next.count += taken;
        done += taken;
        if (next.count < most) continue;
        all_.push_back(next);
        next = {0, 0, next.first + next.count, 0};
      }
    if (next.count > 0) all_.push_back(next);
  }

  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] const chunk& operator[](std::size_t number) const noexcept { return all_[number]; }

  /// Calls `visit(range, offset in it, element of the chunk, count)` for each part of a range that a chunk has.
  template <class T, class Visit>
  static void each_part(const chunk& of, std::span<const owned_range<T>> owned, Visit&& visit) {
    std::size_t r = of.range, offset = of.offset;
    for (std::size_t done = 0; done < of.count; ++r, offset = 0) {
      const std::size_t count = lesser_of(owned[r].count - offset, of.count - done);
      if (count > 0) visit(owned[r], offset, done, count);
      done += count;
    }
  }

 private:
  std::vector<chunk> all_;
};

/// Whether values and gradients of a bucket come to where they are updated, by a copy or from a file. On a host what
/// lies in another lower tier is updated in place, on a device what lies there.
struct bucket_copies {
  bool values = true;
  bool gradients = true;
  file_shards* value_file = nullptr;
  file_shards* gradient_file = nullptr;
};

/// Those of all buckets: `is_copied(tier)` says whether what lies there comes to where it is updated; what lies in a
/// file does.
template <class Buckets, class IsCopied>
[[nodiscard]] std::vector<bucket_copies> copies_of_buckets(Buckets& buckets, const IsCopied& is_copied) {
  std::vector<bucket_copies> all;
  for (std::size_t b = 0; b < buckets.layout().buckets().size(); ++b) {
    const bucket_places::bucket_location& place = buckets.places()[b];
    bucket_copies one{is_copied(place.values_in), is_copied(place.gradients_in)};
    if (place.values_in == tier::file) one.value_file = buckets.value_file();
    if (place.gradients_in == tier::file) one.gradient_file = buckets.gradient_file();
    one.values = one.values || one.value_file != nullptr;
    one.gradients = one.gradients || one.gradient_file != nullptr;
    all.push_back(one);
  }
  return all;
}

/// `Parts` elements of state for each element that is owned. What streams have queued points to it: it lives until they
/// are over.
template <class T, tier_file_calls Files, std::size_t Parts>
class offloaded_state {
 public:
  using state_type = compute_type_t<T>;
  static constexpr std::size_t parts = Parts;
  using visit_state = function_ref<void(const char*, const owned_range<T>&, std::span<state_type>)>;
  using visit_place = function_ref<void(const char*, const owned_range<T>&, std::span<const stored_bytes>)>;

  /// `ring` has `sizes.ring_bytes` of the owned elements; `state` the parts one after another, or nothing where they
  /// are in a file, which is made in `folder`. Where the ring is a device's, `beside` is as large, of the host, for
  /// that file. Throws tier_file_error where it cannot be made.
  offloaded_state(std::span<const owned_range<T>> owned, std::size_t owned_elements, std::vector<bucket_copies> copied,
                  const optimizer_memory& memory, const state_layout& sizes, std::span<state_type> state,
                  std::span<std::byte> ring, std::span<std::byte> beside, slot_contents free, where at);

  /// The parts of ranges that each chunk has, as rows of a table that will lie from `rows` on: where they are updated.
  [[nodiscard]] std::vector<kernel::chunked_range> describe(const kernel::chunked_range* rows);

  /// Queues the update of all chunks on the streams of `engine`. `computes(range, offset in it, value, gradient, state
  /// [parts], count)` queues that of a part of a range, in the order of the compute stream; or, where the chunks were
  /// described, `computes(ranges, chunks of sums in them, state, elements from one part of it to the next)` that of a
  /// chunk. The gather of each bucket
  /// starts when all of its values that this rank owns are queued, and the compute stream waits for all of them. Where
  /// nothing is in a file the host does not wait, and a graph may have it: it uses the slots of its capture in each
  /// launch.
  template <class Engine, class Buckets, class Computes>
  void update(Engine& engine, Buckets& buckets, const Computes& computes, where at) {
    const std::size_t bucket_count = buckets.layout().buckets().size();
    const auto gather = [&](std::size_t b, const stream_event& there) { buckets.start_gather(b, after(there, at)); };
    ring_.reset();
    auto& copies = engine.copies();
    auto& compute = engine.compute();
    stream_event values = compute.record();
    copies.wait(values, at);  // gradients are there, and nobody reads the values
    std::size_t bucket = 0;
    // A slot is filled again when it was emptied; one of a file, when the next one was emptied: it is written
    // meanwhile.
    const std::size_t slot_count = ring_.slot_count(), ahead = file_ && slot_count > 1 ? slot_count - 1 : slot_count;
    for (std::size_t k = 0, loaded = 0; k < chunks_.size(); ++k) {
      for (; loaded < chunks_.size() && loaded < k + ahead; ++loaded)
        in_slots_[loaded % slot_count] = load(loaded, copies, at);
      compute_chunk(k, in_slots_[k % slot_count], computes, engine, at);
      values = store(k, in_slots_[k % slot_count], engine, at);
      for (const std::size_t next = first_unfinished(k + 1); bucket < next && bucket < bucket_count; ++bucket)
        gather(bucket, values);
    }
    for (; bucket < bucket_count; ++bucket) gather(bucket, values);
    copies.let_wait(compute, values, at);
    if (file_)
      for (file_transfer& each : written_) copies.run([&each, at] { each.wait(at); });
    for (const bucket_copies& each : copies_of_) {
      if (each.value_file == nullptr) continue;
      each.value_file->queue_settle(at);
      break;
    }
    buckets.finish_gathers_in(compute);
  }

  /// Calls `visit(part, range, state)` for the state of every range, or of a part of one where it is in a file: what
  /// `visit` writes goes back there. Nothing may be under way.
  void each_state(visit_state visit, where at);
  /// Calls `visit(part, range, state)` for the state of every range, or of a part of one where it is in a file, and
  /// `visit` writes all of it: a chunk is written while the next is filled. Nothing may be under way.
  void fill_state(visit_state visit, where at);
  /// Calls `visit(part, range, places)` for state in a file: part by part, so that what is adjacent in a chunk follows.
  void each_place(visit_place visit) const;

  [[nodiscard]] bool in_file() const noexcept { return file_.has_value(); }
  [[nodiscard]] const tier_file<Files>* file() const noexcept { return file_ ? &*file_ : nullptr; }

  static constexpr const char* part_names[] = {"first_moment", "second_moment", "master"};

 private:
  // A chunk in its slot.
  struct slot_view {
    std::byte* all = nullptr;
    std::array<state_type*, parts> state{};  // there, or where it lives
    state_type* gradient = nullptr;
    T* value = nullptr;
    std::size_t number = 0, count = 0;
  };

  [[nodiscard]] slot_view view_of(std::span<std::byte> slot, std::size_t chunk) const noexcept {
    slot_view out;
    out.all = slot.data();
    out.count = chunks_[chunk].count;
    out.gradient = reinterpret_cast<state_type*>(slot.data() + state_in_slot_);
    out.value = reinterpret_cast<T*>(out.gradient + chunk_);
    for (std::size_t p = 0; p != parts; ++p)
      out.state[p] = state_in_slot_ > 0 ? reinterpret_cast<state_type*>(slot.data()) + p * out.count
                                        : state_.data() + p * part_ + chunks_[chunk].first;
    return out;
  }
  // Elements from one part of a chunk's state to the next.
  [[nodiscard]] std::size_t part_of(const slot_view& slot) const noexcept {
    return state_in_slot_ > 0 ? slot.count : part_;
  }
  // What a file is read into and written from.
  [[nodiscard]] std::span<std::byte> file_slot(std::size_t number) const noexcept {
    return beside_.slot_count() > 0 ? beside_.slot(number) : ring_.slot(number);
  }

  void visit_chunk(std::size_t k, const slot_view& slot, visit_state visit) const;

  template <class Element, class Copies>
  static void copy_in(Element* to, const Element* from, std::size_t count, file_shards* file, Copies& copies,
                      where at) {
    if (file != nullptr)
      file->queue_read(from, to, count * sizeof(Element), at);
    else
      copies.copy(to, from, count * sizeof(Element));
  }
  // The state of a chunk, between its slot and where it lives.
  template <class Copies>
  void restore_state(std::size_t k, const slot_view& slot, Copies& copies, where at) {
    if (file_) {
      std::byte* const to = file_slot(slot.number).data();
      copies.run([file = &*file_, offset = sizes_.file_offset(k), to, bytes = sizes_.file_bytes_of_chunk(slot.count),
                  at] { file->start_read(offset, {to, bytes}, at).wait(at); });
      if (to != slot.all) copies.copy(slot.all, to, parts * slot.count * sizeof(state_type));
      return;
    }
    for (std::size_t p = 0; p != parts && state_in_slot_ > 0; ++p)
      copies.copy(slot.state[p], state_.data() + p * part_ + chunks_[k].first, slot.count * sizeof(state_type));
  }
  template <class Copies>
  void offload_state(std::size_t k, const slot_view& slot, Copies& copies, where at) {
    if (file_) {
      std::byte* const from = file_slot(slot.number).data();
      if (from != slot.all) copies.copy(from, slot.all, parts * slot.count * sizeof(state_type));
      copies.run([file = &*file_, &under_way = written_[slot.number], offset = sizes_.file_offset(k), from,
                  bytes = sizes_.file_bytes_of_chunk(slot.count),
                  at] { under_way = file->start_write(offset, {from, bytes}, at); });
      return;
    }
    for (std::size_t p = 0; p != parts && state_in_slot_ > 0; ++p)
      copies.copy(state_.data() + p * part_ + chunks_[k].first, slot.state[p], slot.count * sizeof(state_type));
  }
  template <class Copies>
  [[nodiscard]] slot_view load(std::size_t k, Copies& copies, where at) {
    const std::size_t number = ring_.next();
    if (file_) copies.run([&last = written_[number], at] { last.wait(at); });
    slot_view slot = view_of(ring_.acquire(copies, at), k);
    slot.number = number;
    restore_state(k, slot, copies, at);
    state_chunks::each_part(chunks_[k], owned_,
                            [&](const auto& range, std::size_t offset, std::size_t in, std::size_t n) {
                              const bucket_copies& from = copies_of_[range.bucket];
                              if (from.gradients)
                                copy_in(slot.gradient + in, range.gradient + offset, n, from.gradient_file, copies, at);
                              if (from.values)
                                copy_in(slot.value + in, range.value + offset, n, from.value_file, copies, at);
                            });
    copied_[number] = copies.record();
    return slot;
  }

  template <class Engine, class Computes>
  void compute_chunk(std::size_t k, const slot_view& slot, const Computes& computes, Engine& engine, where at) {
    engine.copies().let_wait(engine.compute(), copied_[slot.number], at);
    if constexpr (std::invocable<const Computes&, kernel::chunked_ranges, std::size_t, state_type*, std::size_t>) {
      const chunk_rows& own = rows_of_[k];
      computes(kernel::chunked_ranges{rows_ + own.first, own.count}, own.chunks, slot.state[0], part_of(slot));
    } else {
      each_part(k, slot, computes);
    }
  }
  // Calls `visit(range, offset in it, value, gradient, state, count)` for the parts of ranges that a chunk has.
  template <class Visit>
  void each_part(std::size_t k, const slot_view& slot, const Visit& visit) const {
    state_chunks::each_part(
        chunks_[k], owned_, [&](const auto& range, std::size_t offset, std::size_t in, std::size_t n) {
          const bucket_copies& of = copies_of_[range.bucket];
          state_type* const gradient = of.gradients ? slot.gradient + in : range.gradient + offset;
          std::array<state_type*, parts> state = slot.state;
          for (state_type*& each : state) each += in;
          visit(range, offset, of.values ? slot.value + in : range.value + offset, gradient, state, n);
        });
  }

  // Returns when the values are where they live.
  template <class Engine>
  [[nodiscard]] stream_event store(std::size_t k, const slot_view& slot, Engine& engine, where at) {
    auto& copies = engine.copies();
    copies.wait(engine.compute().record(), at);
    state_chunks::each_part(chunks_[k], owned_,
                            [&](const auto& range, std::size_t offset, std::size_t in, std::size_t n) {
                              const bucket_copies& to = copies_of_[range.bucket];
                              if (to.value_file != nullptr)
                                to.value_file->queue_write(range.value + offset, slot.value + in, n * sizeof(T), at);
                              else if (to.values)
                                copies.copy(range.value + offset, slot.value + in, n * sizeof(T));
                            });
    const stream_event values = copies.record();
    offload_state(k, slot, copies, at);
    ring_.release(copies.record(), at);
    return values;
  }

  // The first bucket that has values in chunk `k` or later.
  [[nodiscard]] std::size_t first_unfinished(std::size_t k) const noexcept {
    return k < chunks_.size() ? owned_[chunks_[k].range].bucket : static_cast<std::size_t>(-1);
  }

  std::span<const owned_range<T>> owned_;
  state_layout sizes_;
  state_chunks chunks_;
  std::size_t chunk_, state_in_slot_;
  std::span<state_type> state_;
  std::size_t part_;
  std::vector<bucket_copies> copies_of_;  // by bucket
  slot_ring ring_, beside_;
  std::vector<slot_view> in_slots_;
  std::vector<stream_event> copied_;    // by slot: its chunk is there
  std::vector<file_transfer> written_;  // by slot: what is written from it, of the stream of copies
  std::optional<tier_file<Files>> file_;
  struct chunk_rows {
    std::size_t first, count, chunks;
  };
  const kernel::chunked_range* rows_ = nullptr;  // where chunks were described
  std::vector<chunk_rows> rows_of_;
};

template <class T, tier_file_calls Files, std::size_t Parts>
offloaded_state<T, Files, Parts>::offloaded_state(std::span<const owned_range<T>> owned, std::size_t owned_elements,
                                                  std::vector<bucket_copies> copied, const optimizer_memory& memory,
                                                  const state_layout& sizes, std::span<state_type> state,
                                                  std::span<std::byte> ring, std::span<std::byte> beside,
                                                  slot_contents free, where at)
    : owned_(owned),
      sizes_(sizes),
      chunks_(owned, memory.chunk),
      chunk_(sizes.chunk_of(owned_elements)),
      state_in_slot_(sizes.state_in_slot(owned_elements)),
      state_(state),
      part_(owned_elements),
      copies_of_(std::move(copied)) {
  if (owned_elements == 0) return;
  const std::size_t slot_count = sizes.slots_of(owned_elements);
  const auto slots_in = [&](std::span<std::byte> all, slot_contents found) {
    void* first = all.data();
    std::size_t room = all.size();
    first = std::align(sizes.alignment(), slot_count * sizes.slot_bytes(owned_elements), first, room);
    return slot_ring({static_cast<std::byte*>(first), slot_count * sizes.slot_bytes(owned_elements)}, slot_count,
                     sizes.alignment(), found);
  };
  ring_ = slots_in(ring, free);
  if (!beside.empty()) beside_ = slots_in(beside, slot_contents::kept);
  in_slots_.resize(slot_count);
  written_.resize(slot_count);
  copied_.resize(slot_count);
  if (memory.state == tier::file)
    file_.emplace(memory.folder, sizes.file_bytes(owned_elements), 2 * slot_count, memory.access, at);
}

template <class T, tier_file_calls Files, std::size_t Parts>
std::vector<kernel::chunked_range> offloaded_state<T, Files, Parts>::describe(const kernel::chunked_range* rows) {
  rows_ = rows;
  rows_of_.clear();
  std::vector<kernel::chunked_range> out;
  std::size_t chunks = 0;
  for (std::size_t k = 0; k < chunks_.size(); ++k) {
    const slot_view slot = view_of(ring_.slot(k % ring_.slot_count()), k);  // as an update takes them
    const std::size_t first = out.size(), chunks_before = chunks;
    std::size_t before = 0;
    each_part(k, slot, [&](const auto& range, std::size_t, T* value, state_type* gradient, const auto&, std::size_t n) {
      out.push_back({value, gradient, n, chunks, before, range.decay == weight_decay::yes ? std::uint64_t{1} : 0});
      chunks += kernel::chunk_count(n);
      before += n;
    });
    rows_of_.push_back({first, out.size() - first, chunks - chunks_before});
  }
  return out;
}

template <class T, tier_file_calls Files, std::size_t Parts>
void offloaded_state<T, Files, Parts>::each_state(visit_state visit, where at) {
  if (!file_) {
    std::size_t done = 0;
    for (const owned_range<T>& range : owned_) {
      for (std::size_t p = 0; p != parts; ++p)
        visit(part_names[p], range, state_.subspan(p * part_ + done, range.count));
      done += range.count;
    }
    return;
  }
  ring_.reset();
  for (std::size_t k = 0; k < chunks_.size(); ++k) {
    const slot_view slot = view_of(file_slot(0), k);
    const std::span<std::byte> bytes{slot.all, sizes_.file_bytes_of_chunk(slot.count)};
    file_->start_read(sizes_.file_offset(k), bytes, at).wait(at);
    visit_chunk(k, slot, visit);
    file_->start_write(sizes_.file_offset(k), bytes, at).wait(at);
  }
}

template <class T, tier_file_calls Files, std::size_t Parts>
void offloaded_state<T, Files, Parts>::fill_state(visit_state visit, where at) {
  if (!file_) return each_state(visit, at);
  ring_.reset();
  for (file_transfer& each : written_) each = {};
  for (std::size_t k = 0; k < chunks_.size(); ++k) {
    file_transfer& last = written_[k % ring_.slot_count()];
    last.wait(at);
    const slot_view slot = view_of(file_slot(k % ring_.slot_count()), k);
    const std::span<std::byte> bytes{slot.all, sizes_.file_bytes_of_chunk(slot.count)};
    std::memset(bytes.data(), 0, bytes.size());  // what rounds the chunk up
    visit_chunk(k, slot, visit);
    last = file_->start_write(sizes_.file_offset(k), bytes, at);
  }
  for (file_transfer& each : written_) each.wait(at);
}

template <class T, tier_file_calls Files, std::size_t Parts>
void offloaded_state<T, Files, Parts>::each_place(visit_place visit) const {
  std::vector<stored_bytes> places;
  for (std::size_t p = 0; p != parts; ++p)
    for (std::size_t k = 0; k < chunks_.size(); ++k)
      state_chunks::each_part(
          chunks_[k], owned_, [&](const auto& range, std::size_t offset, std::size_t in, std::size_t n) {
            if (offset == 0) places.clear();
            places.emplace_back(file_->reference(),
                                sizes_.file_offset(k) + (p * chunks_[k].count + in) * sizeof(state_type),
                                n * sizeof(state_type));
            if (offset + n == range.count) visit(part_names[p], range, std::span<const stored_bytes>(places));
          });
}

template <class T, tier_file_calls Files, std::size_t Parts>
void offloaded_state<T, Files, Parts>::visit_chunk(std::size_t k, const slot_view& slot, visit_state visit) const {
  state_chunks::each_part(chunks_[k], owned_,
                          [&](const auto& range, std::size_t offset, std::size_t in, std::size_t n) {
                            owned_range<T> part = range;
                            part.offset += offset;
                            part.count = n;
                            for (std::size_t p = 0; p != parts; ++p)
                              visit(part_names[p], part, std::span<state_type>(slot.state[p] + in, n));
                          });
}

}  // namespace belay::inline BELAY_ABI
