// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whose turn it is.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "belay/device/stream_arbiter.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL void stream_arbiter::add(arbitrated& stream) {
  const std::lock_guard lock(mutex_);
  // Ranks register in any order; the order of candidates must not depend on it.
  const auto after = [](const arbitrated* a, const arbitrated* b) {
    if (a->rank_ != b->rank_) return a->rank_ < b->rank_;
    return a->by_ != b->by_ ? a->by_ < b->by_ : a->kind_ < b->kind_;
  };
  streams_.insert(std::upper_bound(streams_.begin(), streams_.end(), &stream, after), &stream);
  if (lists_.empty()) return;
  stream.messages_ = std::move(lists_.back());
  lists_.pop_back();
}

BELAY_DECL void stream_arbiter::remove(arbitrated& stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), &stream), streams_.end());
  if (lists_.size() < lists_.capacity()) lists_.push_back(std::move(stream.messages_));
}

BELAY_DECL void stream_arbiter::wait(function_ref<bool()> done) {
  std::unique_lock lock(mutex_);
  if (done()) return;
  waiting_host self{done, false, {}};
  hosts_.push_back(&self);
  --running_;
  while (!self.released) schedule(lock, self.called);
  hosts_.erase(std::find(hosts_.begin(), hosts_.end(), &self));
}

BELAY_DECL void stream_arbiter::begin_call(arbitrated& call) {
  std::unique_lock lock(mutex_);
  std::condition_variable called;
  call.sleeper_ = &called;
  --running_;
  while (!call.granted_ && !open_) schedule(lock, called);
  call.sleeper_ = nullptr;
  if (!must_end(call)) call_a_host();  // an exchange waits for what another one draws
}

BELAY_DECL void stream_arbiter::end_call(arbitrated& call) noexcept {
  const std::lock_guard lock(mutex_);
  ++running_;  // which draws itself once it waits
  call.granted_ = false;
  if (open_) call_a_host();
}

BELAY_DECL void stream_arbiter::await_turn(arbitrated& stream) {
  std::unique_lock lock(mutex_);
  std::condition_variable called;
  stream.sleeper_ = &called;
  called.wait(lock, [&] { return stream.granted_ || open_; });
  stream.sleeper_ = nullptr;
}

BELAY_DECL void stream_arbiter::finished(arbitrated& stream) noexcept {
  const std::lock_guard lock(mutex_);
  stream.granted_ = false;
  call_a_host();
}

// Lets something run, or waits for what runs. Of all hosts that wait one is enough for it: waking all for each piece of
// work would take most of a run's time.
BELAY_DECL void stream_arbiter::schedule(std::unique_lock<std::mutex>& lock, std::condition_variable& called) {
  const auto ends = [&](const arbitrated* stream) { return must_end(*stream); };
  const bool all_wait = running_ == 0 && !one_runs_ && std::none_of(streams_.begin(), streams_.end(), ends);
  if (!all_wait && (!open_ || one_runs_)) return sleep(lock, called);
  if (!release_hosts()) run_one(lock, called);
}

BELAY_DECL void stream_arbiter::sleep(std::unique_lock<std::mutex>& lock, std::condition_variable& called) {
  sleepers_.push_back(&called);
  // What is open is nobody's turn: who waits looks again now and then.
  if (open_)
    called.wait_for(lock, std::chrono::milliseconds(20));
  else
    called.wait(lock);
  std::erase(sleepers_, &called);
}

BELAY_DECL void stream_arbiter::call(std::condition_variable& sleeper) noexcept {
  std::erase(sleepers_, &sleeper);
  sleeper.notify_one();
}

// Something has changed while no host looked.
BELAY_DECL void stream_arbiter::call_a_host() noexcept {
  while (!sleepers_.empty()) {
    call(*sleepers_.back());
    if (!open_) break;
  }
}

// Whether what has its turn has all that it needs: it is over before anything else is drawn.
BELAY_DECL bool stream_arbiter::must_end(const arbitrated& stream) const noexcept {
  if (!stream.granted_) return false;
  const stream_meeting* const meeting = stream.meeting_;
  if (meeting == nullptr) return true;
  for (std::size_t i = 0; i < meeting->transfers.size(); ++i) {
    const stream_transfer& one = meeting->transfers[i];
    const bool sends = one.way == stream_transfer::direction::send;
    const int from = sends ? stream.rank_ : one.peer, to = sends ? one.peer : stream.rank_;
    std::uint64_t partners = 0;
    for (const channel& each : channels_)
      if (each.key == meeting->key && each.from == from && each.to == to) partners = sends ? each.receives : each.sends;
    if (partners < stream.messages_[i]) return false;
  }
  return true;
}

BELAY_DECL std::uint64_t& stream_arbiter::posted(std::uint64_t key, int from, int to, stream_transfer::direction way) {
  const auto is_it = [&](const channel& one) { return one.key == key && one.from == from && one.to == to; };
  auto found = std::find_if(channels_.begin(), channels_.end(), is_it);
  if (found == channels_.end()) found = channels_.insert(channels_.end(), {key, from, to, 0, 0});
  return way == stream_transfer::direction::send ? found->sends : found->receives;
}

BELAY_DECL void stream_arbiter::open() noexcept {
  const std::lock_guard lock(mutex_);
  let_all_run();
}

BELAY_DECL void stream_arbiter::let_all_run() noexcept {
  open_ = true;
  for (arbitrated* one : streams_)
    if (one->sleeper_ != nullptr) call(*one->sleeper_);
  call_a_host();
}

BELAY_DECL void stream_arbiter::remove_host() noexcept {
  const std::lock_guard lock(mutex_);
  --running_;
  call_a_host();
}

BELAY_DECL bool stream_arbiter::release_hosts() {
  bool any = false;
  for (waiting_host* one : hosts_) {
    if (one->released || !one->done()) continue;
    one->released = any = true;
    ++running_;
    call(one->called);
  }
  return any;
}

BELAY_DECL void stream_arbiter::run_one(std::unique_lock<std::mutex>& lock, std::condition_variable& called) {
  find_candidates();
  if (candidates_.empty()) {
    // Nothing can go on: ranks have called different things, or one is gone. The operations say which.
    return open_ ? sleep(lock, called) : let_all_run();
  }
  const auto communicates = [](const arbitrated* one) { return one->by_ != arbitrated::runner::waiting_host; };
  const auto computes = [](const arbitrated* one) { return one->kind_ == stream_kind::compute; };
  auto late = std::find_if(candidates_.begin(), candidates_.end(), communicates);
  if (late == candidates_.end()) late = std::find_if(candidates_.begin(), candidates_.end(), computes);
  arbitrated& next = seed_ != 0                  ? *candidates_[draw(candidates_.size())]
                     : late != candidates_.end() ? **late
                                                 : *candidates_.front();
  if (next.by_ == arbitrated::runner::waiting_host) {
    one_runs_ = true;
    lock.unlock();
    next.run_next();
    lock.lock();
    one_runs_ = false;
    if (open_) call_a_host();
    return;
  }
  if (const stream_meeting* meeting = next.meets(); meeting != nullptr && meeting->collective()) {
    const std::uint64_t key = meeting->key;
    for (int rank : meeting->ranks)
      if (arbitrated* peer = in_meeting(rank, key)) grant(*peer);
  } else {
    grant(next);
  }
}

BELAY_DECL void stream_arbiter::grant(arbitrated& stream) {
  stream.granted_ = true;
  if (stream.sleeper_ != nullptr) call(*stream.sleeper_);
  stream.messages_.clear();
  const stream_meeting* const meeting = stream.meeting_ = stream.meets();
  if (meeting == nullptr) return;
  for (const stream_transfer& one : meeting->transfers) {
    const bool sends = one.way == stream_transfer::direction::send;
    const int from = sends ? stream.rank_ : one.peer, to = sends ? one.peer : stream.rank_;
    stream.messages_.push_back(++posted(meeting->key, from, to, one.way));
  }
}

// What could run now: work of one rank, and communications whose ranks have all come.
BELAY_DECL void stream_arbiter::find_candidates() {
  candidates_.clear();
  for (arbitrated* stream : streams_) {
    stream->in_meeting_ = false;
    if (stream->granted_ || (open_ && stream->by_ != arbitrated::runner::waiting_host) || !stream->can_run()) continue;
    stream->in_meeting_ = stream->meets() != nullptr && stream->meets()->collective();
    candidates_.push_back(stream);
  }
  const auto is_alone = [&](const arbitrated* one) {
    return one->meets() != nullptr && one->meets()->collective() && !one->in_meeting_;
  };
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
  return std::any_of(mine.ranks.begin(), mine.ranks.end(),
                     [&](int rank) { return in_meeting(rank, mine.key) == nullptr; });
}

BELAY_DECL std::uint64_t stream_arbiter::draw(std::uint64_t below) noexcept {
  // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
  std::uint64_t z = random_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (z ^ (z >> 31)) % below;
}

BELAY_DECL stream_arbiter::stream_arbiter(std::uint64_t seed, std::size_t hosts)
    : random_(seed), seed_(seed), running_(hosts) {
  streams_.reserve(8 * hosts);  // waiting allocates nothing
  sleepers_.reserve(hosts);
  candidates_.reserve(8 * hosts);
  lists_.reserve(8 * hosts);
  for (std::size_t i = 0; i < hosts; ++i) lists_.emplace_back().reserve(64);
  hosts_.reserve(hosts);
}

}  // namespace belay::inline BELAY_ABI
