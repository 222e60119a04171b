// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Settings of AdamW, where its state is kept and what memory that takes, of the tier itself and of the ring through
// which chunks stream: the plan and the run take the sizes from here. And its update where it lies: kernels over the
// ranges that a rank owns. Each element is updated by itself, so that neither sharding nor how many are given to a
// kernel changes a bit. The values of a bucket are gathered while the next one is updated.
// IWYU pragma: private, include "belay/train/optimizer.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/kernel/chunked_ranges.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/step/commit.hpp"
#include "belay/train/range_table.hpp"

namespace belay::inline BELAY_ABI {

/// learning_rate, beta1, beta2, epsilon, and decay (of parameters made with weight_decay::yes).
using adamw_settings = kernel::adamw_settings;

/// The token of a committed step.
template <class Token>
concept committed_token = std::same_as<std::remove_cvref_t<Token>, committed_step>;

/// Reduced and divided gradients, which are moved.
template <class Gradients, class T>
concept gradients_to_apply = std::same_as<Gradients, reduced_gradients<T>>;

/// Elements of AdamW's state for every element of T that a rank owns: two moments, and a master copy where T is
/// narrower than its gradients.
template <class T>
inline constexpr std::size_t adamw_state_parts = rounds_gradients<T> ? 3 : 2;

/// Elements of AdamW's state for `layout` on a rank with number `rank_in_replica_group[f]` in each replica group f.
template <class T = float>
[[nodiscard]] std::size_t adamw_state_elements(const bucket_layout& layout,
                                               std::span<const std::size_t> rank_in_replica_group) {
  return adamw_state_parts<T> * layout.owned_elements(rank_in_replica_group);
}

/// Where an optimizer keeps its state: on a host the update runs where that lives, chunk by chunk. Gradients and values
/// of a chunk are copied there through a ring on the stream of copies, and the values back; in tier device nothing is
/// copied, but for parameters in tier file. State and parameters of a file are updated in a ring of tier host. Where
/// ranks compute on a device the update runs there: what lives in a lower tier comes to a ring on the device, and goes
/// back.
struct optimizer_memory {
  tier state = tier::device;
  std::string folder = {};                   // of tier file: the directory in which its file is made
  std::size_t chunk = std::size_t{1} << 18;  // elements that stream as one
  file_access access = file_access::best;    // of tier file
};

/// Bytes of what a chunk needs in a slot, and of the whole. `parts` elements of `state_bytes` bytes for each element
/// that is owned; values have `value_bytes`, gradients as much as one part of the state.
class state_layout {
 public:
  state_layout() = default;
  state_layout(tier state, computes_on on, std::size_t chunk, std::size_t parts, std::size_t state_bytes,
               std::size_t value_bytes, std::size_t alignment) noexcept
      : in_file_(state == tier::file),
        in_slot_(in_file_ || (on_device(on) && state != tier::device)),
        chunk_(chunk),
        of_state_(parts * state_bytes),
        of_slot_(state_bytes + value_bytes),
        alignment_(in_file_ ? alignment : std::size_t{64}) {}

  /// Elements of a chunk at most, where `owned` are owned.
  [[nodiscard]] std::size_t chunk_of(std::size_t owned) const noexcept { return lesser_of(chunk_, owned); }
  [[nodiscard]] std::size_t chunks_of(std::size_t owned) const noexcept {
    return owned / chunk_ + (owned % chunk_ != 0);
  }
  /// Two chunks are there before they are updated, so that nobody waits for the other stream to wake up. State of a
  /// file is also written from its slot: one more is written meanwhile.
  [[nodiscard]] std::size_t slots_of(std::size_t owned) const noexcept {
    return lesser_of<std::size_t>(in_file_ ? 4 : 3, chunks_of(owned));
  }
  /// Of a chunk's state in its slot: 0 where it is updated where it lives.
  [[nodiscard]] std::size_t state_in_slot(std::size_t owned) const noexcept {
    return in_slot_ ? rounded(chunk_of(owned) * of_state_) : 0;
  }
  [[nodiscard]] std::size_t slot_bytes(std::size_t owned) const noexcept {
    return rounded(state_in_slot(owned) + chunk_of(owned) * of_slot_ + 64);
  }
  /// The ring, with room to align its first slot.
  [[nodiscard]] std::size_t ring_bytes(std::size_t owned) const noexcept {
    return owned == 0 ? 0 : slots_of(owned) * slot_bytes(owned) + (in_file_ ? alignment_ : 0);
  }
  /// Byte of the file at which a whole chunk `number` begins, and the end of the last, which may be shorter.
  [[nodiscard]] std::size_t file_offset(std::size_t number) const noexcept {
    return number * rounded(chunk_ * of_state_);
  }
  [[nodiscard]] std::size_t file_bytes(std::size_t owned) const noexcept {
    return file_offset(owned / chunk_) + rounded(owned % chunk_ * of_state_);
  }
  /// Of `count` elements of state in the file.
  [[nodiscard]] std::size_t file_bytes_of_chunk(std::size_t count) const noexcept { return rounded(count * of_state_); }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }

 private:
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept {
    return checked_size(bytes).rounded_up(alignment_).saturated();
  }

  bool in_file_ = false, in_slot_ = false;
  std::size_t chunk_ = 1;
  std::size_t of_state_ = 0, of_slot_ = 0;
  std::size_t alignment_ = 64;
};

/// Whether shards of parameters or gradients lie in a lower tier.
[[nodiscard]] inline bool has_lower_shards(const bucket_layout& layout) {
  for (const replica_group_shape& each : layout.replica_groups())
    if (each.values != tier::device || each.gradients != tier::device) return true;
  return false;
}

/// The settings that may change from step to step: equal on all ranks, which the next commit's vote compares.
struct update {
  /// The learning rate of this update.
  double learning_rate = 1e-3;
  double clip = infinite<double>;  // the largest norm of all gradients; larger ones are scaled
};

/// Throws usage_error for a rate that is below 0 or no number, and for a limit of the norm that is not above 0.
inline void check_update(const update& with, where at) {
  if (!is_finite(with.learning_rate) || with.learning_rate < 0)
    throw usage_error(
        "an update with the learning rate " + std::to_string(with.learning_rate) + ": it is a number from 0 on", at);
  if (is_nan(with.clip) || with.clip <= 0)
    throw usage_error("an update that clips the norm to " + std::to_string(with.clip) +
                          ": the limit is above 0, and infinity is none",
                      at);
}

/// The scalars of one update, or where they are, of parameters with weight decay and without.
template <class State, class Scalars = kernel::adamw_scalars<State>>
struct adamw_step {
  Scalars decayed, undecayed;
};

/// Queues the update of `count` elements, whose state is `state[0]`, `state[1]` and, where T is narrower, the master
/// copies `state[2]`, in kernels of at most `at_once` elements.
template <class T, class Kit, class State, class Parts, class Scalars>
void queue_adamw(Kit& kit, T* value, const State* gradient, const Parts& state, std::size_t count,
                 const Scalars& scalars, std::size_t at_once) {
  for (std::size_t i = 0, part = 0; i < count; i += part) {
    part = lesser_of(count - i, at_once);
    const auto update = [&](State* master) {
      return kernel::adamw<State, State, Scalars>{master, gradient + i, state[0] + i, state[1] + i, scalars};
    };
    if constexpr (std::is_same_v<T, State>)
      kit.each(part, update(value + i));
    else
      kit.each(part, kernel::adamw_of_master<State, T, Scalars>{value + i, update(state[2] + i)});
  }
}

/// The scalars of an update in the memory of a device, where there is one.
template <class State>
struct update_numbers {
  /// Null where kernels have the scalars themselves; `write` writes them in the order of the engine's stream.
  const adamw_step<State>* memory = nullptr;
  std::function<void(const adamw_step<State>&, where)> write;

  /// Beside the memory of `run`, which keeps it.
  template <class Run>
  void make(Run& run, where at) {
    using memory_type = typename Run::memory_type;
    if constexpr (device_region<memory_type>) {
      auto& engine = run.engine();
      auto numbers =
          std::make_shared<device_numbers<adamw_step<State>, memory_type>>(engine.activations().memory(), at);
      memory = numbers->get();
      write = [&engine, to = numbers.get()](const adamw_step<State>& value, where now) {
        to->write(engine.compute(), value, now);
      };
      run.keep(numbers);
    }
  }
};

/// Calls `change(range, done)` for the ranges `owned`, before which there were `done` elements; it queues in the order
/// of `stream`. Each bucket's gather is started when its values are there, and the stream waits for all of them.
template <class Stream, class Buckets, class T, class Change>
void change_and_gather(Stream& stream, Buckets& buckets, std::span<const owned_range<T>> owned, const Change& change,
                       where at) {
  std::size_t done = 0, bucket = 0;
  const auto gather_before = [&](std::size_t end) {
    for (; bucket < end; ++bucket) buckets.start_gather(bucket, after(stream.record(), at));
  };
  for (const owned_range<T>& range : owned) {
    gather_before(range.bucket);
    change(range, done);
    done += range.count;
  }
  gather_before(buckets.layout().buckets().size());
  buckets.finish_gathers_in(stream);
}

/// Queues the update of the ranges `owned`, whose `state` is one part after the other, in kernels of at most `at_once`
/// elements, and the gathers of their buckets.
template <class T, class Kit, class Buckets, class Scalars>
void queue_update(Kit& kit, Buckets& buckets, std::span<const owned_range<T>> owned, std::span<compute_type_t<T>> state,
                  const Scalars& decayed, const Scalars& undecayed, std::size_t at_once, where at) {
  using state_type = compute_type_t<T>;
  constexpr std::size_t parts = std::is_same_v<T, state_type> ? 2 : 3;
  const std::size_t part = state.size() / parts;
  const auto update = [&](const owned_range<T>& range, std::size_t done) {
    const Scalars& scalars = range.decay == weight_decay::yes ? decayed : undecayed;
    std::array<state_type*, parts> of_range{};
    for (std::size_t p = 0; p < parts; ++p) of_range[p] = state.data() + p * part + done;
    queue_adamw(kit, range.value, range.gradient, of_range, range.count, scalars, at_once);
  };
  change_and_gather(kit.stream(), buckets, owned, update, at);
}

/// Queues the update of the ranges of `table`, one launch a bucket, and the gathers of the buckets. `state` is as that
/// of `queue_update`.
template <class T, class Kit, class Buckets, class Scalars>
void queue_update(Kit& kit, Buckets& buckets, const range_table& table, std::span<compute_type_t<T>> state,
                  const Scalars& decayed, const Scalars& undecayed, where at) {
  const std::size_t part = state.size() / adamw_state_parts<T>;
  for (std::size_t b = 0; b < buckets.layout().buckets().size(); ++b) {
    if (const std::size_t chunks = table.chunks_of_bucket(b); chunks > 0)
      kit.teams(chunks, kernel::adamw_of_ranges<compute_type_t<T>, T>{table.of_bucket(b), state.data(), part, decayed,
                                                                      undecayed});
    buckets.start_gather(b, after(kit.stream().record(), at));
  }
  buckets.finish_gathers_in(kit.stream());
}

}  // namespace belay::inline BELAY_ABI
