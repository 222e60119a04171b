// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whose turn it is.
#pragma once

#include <algorithm>
#include <chrono>

#include "belay/device/stream_arbiter.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void stream_arbiter::add(arbitrated& stream) {
  const std::lock_guard lock(mutex_);
  // Ranks register in any order; the order of candidates must not depend on it.
  const auto after = [](const arbitrated* a, const arbitrated* b) {
    return a->rank_ != b->rank_ ? a->rank_ < b->rank_ : a->by_ < b->by_;
  };
  streams_.insert(std::upper_bound(streams_.begin(), streams_.end(), &stream, after), &stream);
}

BELAY_DECL void stream_arbiter::remove(arbitrated& stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), &stream), streams_.end());
}

BELAY_DECL void stream_arbiter::wait(function_ref<bool()> done) {
  std::unique_lock lock(mutex_);
  if (done()) return;
  waiting_host self{done, false};
  hosts_.push_back(&self);
  --running_;
  while (!self.released) {
    const bool all_wait = running_ == 0 && granted_ == 0 && !one_runs_;
    if (all_wait || (open_ && !one_runs_)) {
      if (release_hosts()) {
        changed_.notify_all();
      } else {
        run_one(lock);
      }
    } else {
      changed_.wait(lock);
    }
  }
  hosts_.erase(std::find(hosts_.begin(), hosts_.end(), &self));
}

BELAY_DECL void stream_arbiter::wait_for_turn(arbitrated& call) {
  wait([&] { return call.granted_ || open_; });
}

BELAY_DECL void stream_arbiter::await_turn(arbitrated& stream) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stream.granted_ || open_; });
}

BELAY_DECL void stream_arbiter::finished(arbitrated& stream) noexcept {
  const std::lock_guard lock(mutex_);
  if (stream.granted_) --granted_;
  stream.granted_ = false;
  changed_.notify_all();
}

BELAY_DECL void stream_arbiter::open() noexcept {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

BELAY_DECL void stream_arbiter::leave() noexcept {
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

BELAY_DECL bool stream_arbiter::release_hosts() {
  bool any = false;
  for (waiting_host* one : hosts_) {
    if (one->released || !one->done()) continue;
    one->released = any = true;
    ++running_;
  }
  return any;
}

BELAY_DECL void stream_arbiter::run_one(std::unique_lock<std::mutex>& lock) {
  find_candidates();
  if (candidates_.empty()) {
    // Nothing can go on: ranks have called different things, or one is gone. The operations say which.
    if (!open_) {
      open_ = true;
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return;
  }
  const auto communicates = [](const arbitrated* one) { return one->by_ != arbitrated::runner::waiting_host; };
  const auto late = std::find_if(candidates_.begin(), candidates_.end(), communicates);
  arbitrated& next = seed_ != 0                  ? *candidates_[draw(candidates_.size())]
                     : late != candidates_.end() ? **late
                                                 : *candidates_.front();
  if (next.by_ == arbitrated::runner::waiting_host) {
    one_runs_ = true;
    lock.unlock();
    next.run_next();
    lock.lock();
    one_runs_ = false;
    if (open_) changed_.notify_all();
    return;
  }
  if (const stream_meeting* meeting = next.meets()) {
    // All that need each other, directly or through others.
    std::vector<arbitrated*>& all = candidates_;
    all.assign(1, &next);
    const std::uint64_t key = meeting->key;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i]->in_meeting_ = false;
      for (int rank : all[i]->meets()->ranks)
        if (arbitrated* peer = in_meeting(rank, key)) {
          peer->in_meeting_ = false;
          all.push_back(peer);
        }
    }
    for (arbitrated* each : all) grant(*each);
  } else {
    grant(next);
  }
  changed_.notify_all();
}

BELAY_DECL void stream_arbiter::grant(arbitrated& stream) noexcept {
  stream.granted_ = true;
  if (stream.by_ == arbitrated::runner::own_thread) ++granted_;
}

// What could run now: work of one rank, and communications whose ranks have all come.
BELAY_DECL void stream_arbiter::find_candidates() {
  candidates_.clear();
  for (arbitrated* stream : streams_) {
    stream->in_meeting_ = false;
    if (stream->granted_ || (open_ && stream->by_ != arbitrated::runner::waiting_host) || !stream->can_run()) continue;
    stream->in_meeting_ = stream->meets() != nullptr;
    candidates_.push_back(stream);
  }
  const auto is_alone = [&](const arbitrated* one) { return one->meets() != nullptr && !one->in_meeting_; };
  for (bool changed = true; std::exchange(changed, false);) {
    for (arbitrated* stream : candidates_) {
      if (!stream->in_meeting_ || !lacks_a_rank(*stream)) continue;
      stream->in_meeting_ = false;
      changed = true;
    }
  }
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_alone), candidates_.end());
}

BELAY_DECL arbitrated* stream_arbiter::in_meeting(int rank, std::uint64_t key) const noexcept {
  for (arbitrated* stream : streams_)
    if (stream->rank_ == rank && stream->in_meeting_ && stream->meets()->key == key) return stream;
  return nullptr;
}

BELAY_DECL bool stream_arbiter::lacks_a_rank(const arbitrated& stream) const noexcept {
  const stream_meeting& mine = *stream.meets();
  for (int rank : mine.ranks) {
    if (rank == stream.rank_) continue;
    const arbitrated* const peer = in_meeting(rank, mine.key);
    if (peer == nullptr) return true;
    const auto needed = peer->meets()->ranks;
    if (std::find(needed.begin(), needed.end(), stream.rank_) == needed.end()) return true;
  }
  return false;
}

BELAY_DECL std::uint64_t stream_arbiter::draw(std::uint64_t below) noexcept {
  // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  std::uint64_t z = random_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31)) % below;
}

}  // namespace belay::inline BELAY_ABI
