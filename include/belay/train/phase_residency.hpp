// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that is on the device while a run trains, and in a lower tier in its other phases: gradients and the state of
// optimizers. A transition takes one residency and returns the other, chunk by chunk, so that both are never there.
// What the state is read or written for meanwhile, such as a checkpoint, has it back for a scope.
//
//   belay::phase_residency residency{run, belay::tier::host, store};   // after stores and optimizers
//   phases.moves(residency);
//   auto evaluating = phases.to_eval(std::move(training));             // the state leaves
//   { const auto here = store.hold_state(); ... }                      // it is back, and leaves again
//   training = phases.to_train(std::move(evaluating));                 // and it is back
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/streamed_file.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/train/run_memory.hpp"

namespace belay::inline BELAY_ABI {

/// Where that memory is when a run does not train.
struct residency_memory {
  /// The tier that gradients and optimizer state go to.
  tier lower = tier::host;
  file_memory files = {};  // of tier file: the folder
};

/// Run and stores outlive it. `Files` makes the file of tier file. Errors of a move are tier_file_error, of this rank
/// alone: then nothing has moved, and nothing is lost. A transition makes them those of all ranks.
template <class Run, tier_file_calls Files = system_tier_file_calls>
class phase_residency final : public update_observer {
 public:
  /// Bytes of one copy.
  static constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

  /// All gradients and states of optimizers that `run` has leased on the device so far. In `lower` they get as much
  /// memory, which is planned, and is theirs for as long as the run; in tier device nothing ever leaves. `stores` have
  /// the state: what still reads it, such as a checkpoint that is being written, ends that before it leaves. Throws
  /// usage_error for tier file, which has no folder, and for a store whose state another one moves.
  template <class... Stores>
  phase_residency(Run& run, tier lower, Stores&... stores)
      : phase_residency(run, residency_memory{.lower = lower}, stores...) {}
  /// All gradients and states of optimizers that `run` has leased on the device so far. In `memory.lower` they get as
  /// much memory, which is planned, and is theirs for as long as the run; in tier file a file, which is made now, and a
  /// ring in tier host that they pass through; in tier device nothing ever leaves. `stores` have the state: what still
  /// reads it, such as a checkpoint that is being written, ends that before it leaves. Throws tier_file_error where the
  /// file cannot be made, and usage_error for a tier file that has no folder, and for a store whose state another one
  /// moves.
  template <class... Stores>
  phase_residency(Run& run, const residency_memory& memory, Stores&... stores);
  phase_residency(const phase_residency&) = delete;  // phases and stores point to it
  phase_residency& operator=(const phase_residency&) = delete;
  /// Brings back what is away.
  ~phase_residency();

  /// Moves all to the lower tier; returns the bytes that have left the device: 0 where they had. Between steps, with
  /// nothing queued. Throws usage_error while somebody holds it on the device.
  std::size_t offload(where at = where::current());
  /// Moves all back; returns the bytes that have come: 0 where they were there.
  std::size_t restore(where at = where::current());

  /// All is on the device while the result lives, and then where it was: as the stores' `hold_state`.
  [[nodiscard]] residency_hold hold(where at = where::current()) { return {*this, at}; }
  void before_update(where at) override;
  void begin_hold(where at) override;
  void end_hold(where at) override;

  /// Bytes that it moves, and where they are when they are not on the device.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] tier lower() const noexcept { return lower_; }
  [[nodiscard]] bool away() const noexcept override { return away_; }
  [[nodiscard]] bool here() const noexcept { return gone_ == 0; }
  /// The most bytes that were in both tiers together at a time of a move.
  [[nodiscard]] std::size_t most_in_both() const noexcept { return most_in_both_; }

 private:
  struct chunk {
    std::span<std::byte> here;
    std::byte* away;        // in memory,
    std::uint64_t in_file;  // or in the file
  };

  void take_all(const file_memory& files, where at);
  void take_memory(const std::vector<lasting_lease>& leased, where at);
  void take_file(const file_memory& files, const std::vector<lasting_lease>& leased, where at);
  void add(std::span<std::byte> here, std::byte* away, std::uint64_t in_file);

  // Where it fails, what has left comes back. What of that cannot be read again stays in the file: the next who needs
  // it tries anew.
  void offload_all(where at);
  // Where it fails, what has come is let go of again: it is in the file still.
  void restore_all(where at);

  void offload(const chunk& each, where at);
  void restore(const chunk& each, where at);
  void let_go(const chunk& each) noexcept {
    run_->vacate(tier::device, each.here);
    in_file_ += leased_size(each.here.size());
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, where at) const {
    if (!run_->rehearsing())
      access_ != nullptr ? access_->copy(to, from, bytes, at) : void(std::memcpy(to, from, bytes));
  }
  // Returns when the medium has it.
  void write(const chunk& each, where at);
  void read(const chunk& each, where at);

  // Live bytes of both tiers; a file's own are there for as long as the run.
  [[nodiscard]] std::size_t in_both() const noexcept {
    const tier_meters& meters = run_->meters();
    return meters[tier::device].live_bytes() + (lower_ == tier::file ? in_file_ : meters[lower_].live_bytes());
  }
  void begin_move() noexcept { others_ = in_both() - bytes_; }
  void note_both() noexcept { most_in_both_ = greater_of(most_in_both_, in_both() - others_); }

  Run* run_;
  tier lower_;
  const host_access* access_ = nullptr;  // to a device
  std::vector<chunk> chunks_;
  std::optional<streamed_file<Files>> file_;
  std::size_t bytes_ = 0, most_in_both_ = 0;
  std::size_t gone_ = 0;     // chunks, from the first on, that are not on the device
  std::size_t in_file_ = 0;  // bytes of those, in tier file
  std::size_t others_ = 0;   // bytes of both tiers that are not of this, during a move
  std::size_t holds_ = 0;
  bool away_ = false;                         // as the phase has it
  std::vector<update_observation> observed_;  // of the stores
};

template <class Run, class... Stores>
phase_residency(Run&, tier, Stores&...) -> phase_residency<Run>;
template <class Run, class... Stores>
phase_residency(Run&, const residency_memory&, Stores&...) -> phase_residency<Run>;

template <class Run, tier_file_calls Files>
phase_residency<Run, Files>::~phase_residency() {
  try {
    restore();
  } catch (...) {
  }
}

template <class Run, tier_file_calls Files>
std::size_t phase_residency<Run, Files>::offload(where at) {
  if (away_ || lower_ == tier::device) return 0;
  restore_all(at);  // after a move that has failed
  for (const update_observation& each : observed_) each.all()->before_update(at);
  if (holds_ > 0)
    throw usage_error(
        "gradients and optimizer state are held on the device: what store.hold_state() or residency.hold() has given "
        "ends before training is left",
        at);
  offload_all(at);
  away_ = true;
  return bytes_;
}

template <class Run, tier_file_calls Files>
std::size_t phase_residency<Run, Files>::restore(where at) {
  const std::size_t bytes = gone_ > 0 ? bytes_ : 0;
  restore_all(at);
  away_ = false;
  return bytes;
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::before_update(where at) {
  if (away() || !here())
    throw usage_error(
        "gradients and optimizer state are away from the device: they are updated in training, after "
        "phases.to_train(std::move(...))",
        at);
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::begin_hold(where at) {
  restore_all(at);
  ++holds_;
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::end_hold(where at) {
  if (--holds_ == 0 && away_) offload_all(at);
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::take_all(const file_memory& files, where at) {
  access_ = run_->engine().access(at);
  std::vector<lasting_lease> leased;
  for (const char* purpose : {"gradients", "reductions", "gradients on the wire", "optimizer state"})
    for (const lasting_lease& each : run_->leases_of(tier::device, purpose)) leased.push_back(each);
  lower_ == tier::file ? take_file(files, leased, at) : take_memory(leased, at);
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::take_memory(const std::vector<lasting_lease>& leased, where at) {
  for (const lasting_lease& each : leased) {
    const auto bytes_of = [&](int rank) { return run_->bytes_on(each, rank); };
    const std::span<std::byte> away = run_->template lease_shard<std::byte>(lower_, bytes_of, "out of phase", at);
    run_->vacate(lower_, away);
    add(each.memory, away.data(), 0);
  }
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::take_file(const file_memory& files, const std::vector<lasting_lease>& leased,
                                            where at) {
  if (files.folder.empty())
    throw usage_error(
        "what leaves the device between phases goes to tier file, which has no folder: "
        "belay::residency_memory{.lower = belay::tier::file, .files = {.folder = ...}}",
        at);
  const file_medium medium = medium_of<Files>(files.folder, at);
  const streamed_layout sizes(medium.alignment, lesser_of(files.piece, chunk_bytes / streamed_layout::most_slots));
  const auto bytes_of = [&](int rank) {
    std::size_t all = 0;
    for (const lasting_lease& each : leased) all += sizes.rounded(run_->bytes_on(each, rank));
    return all;
  };
  run_->charge_shard(tier::file, bytes_of, "out of phase",
                     medium.in_memory ? file_bytes::in_memory : file_bytes::on_disk);
  const std::span<std::byte> ring = run_->template lease_shard<std::byte>(
      tier::host, [&](int rank) { return sizes.ring_bytes(bytes_of(rank)); }, "out of phase ring", at);
  std::size_t end = 0;
  for (const lasting_lease& each : leased) {
    add(each.memory, nullptr, end);
    end += sizes.rounded(each.memory.size());
  }
  if (!run_->rehearsing()) {
    if (end == 0) return;
    file_.emplace(files, end, sizes, ring, at);
    file_->set_host_view(access_);
  }
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::add(std::span<std::byte> here, std::byte* away, std::uint64_t in_file) {
  for (std::size_t i = 0; i < here.size(); i += chunk_bytes) {
    const std::size_t count = lesser_of(chunk_bytes, here.size() - i);
    chunks_.push_back({here.subspan(i, count), away == nullptr ? nullptr : away + i, in_file + i});
  }
  bytes_ += leased_size(here.size());
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::offload_all(where at) {
  begin_move();
  try {
    for (; gone_ < chunks_.size(); ++gone_) offload(chunks_[gone_], at);
  } catch (...) {
    try {
      restore_all(at);
    } catch (...) {
    }
    throw;
  }
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::restore_all(where at) {
  begin_move();
  std::size_t come = 0;
  try {
    for (; come < gone_; ++come) restore(chunks_[come], at);
  } catch (...) {
    while (come > 0) let_go(chunks_[--come]);
    throw;
  }
  gone_ = 0;
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::offload(const chunk& each, where at) {
  if (lower_ == tier::file) {
    write(each, at);
    in_file_ += leased_size(each.here.size());
  } else {
    run_->occupy(lower_, {each.away, each.here.size()});
    copy(each.away, each.here.data(), each.here.size(), at);
  }
  note_both();
  run_->vacate(tier::device, each.here);
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::restore(const chunk& each, where at) {
  run_->occupy(tier::device, each.here);
  note_both();
  if (lower_ == tier::file) {
    read(each, at);
    in_file_ -= leased_size(each.here.size());
  } else {
    copy(each.here.data(), each.away, each.here.size(), at);
    run_->vacate(lower_, {each.away, each.here.size()});
  }
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::write(const chunk& each, where at) {
  if (!file_) return;
  try {
    file_->begin_write(each.in_file, each.here.size(), at);
    file_->put(each.in_file, each.here.data(), each.here.size());
    file_->end_write();
    file_->settle(at);
  } catch (...) {
    file_->abandon();
    throw;
  }
}

template <class Run, tier_file_calls Files>
void phase_residency<Run, Files>::read(const chunk& each, where at) {
  if (!file_) return;
  try {
    file_->read_now(each.here.data(), each.in_file, each.here.size(), at);
  } catch (...) {
    file_->abandon();
    run_->vacate(tier::device, each.here);
    throw;
  }
}

template <class Run, tier_file_calls Files>
template <class... Stores>
phase_residency<Run, Files>::phase_residency(Run& run, const residency_memory& memory, Stores&... stores)
    : run_(&run), lower_(memory.lower) {
  const where at = where::current();
  if (lower_ == tier::device) return;
  take_all(memory.files, at);
  (observed_.push_back(stores.observe(*this, observer_turn::moves_state, at)), ...);
}

}  // namespace belay::inline BELAY_ABI
