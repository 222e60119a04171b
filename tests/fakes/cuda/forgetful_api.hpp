// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A device of the host that leaves out waits: for tests that missing ones are seen.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "fakes/cuda/fake_api.hpp"

namespace fakes {

// The n-th of all waits of streams, or those for its own rank's streams, or its peers', or each rank's n-th for those;
// or those of the host in the communication threads of ranks; or the n-th for an event of a capture.
enum class forgets : std::uint8_t { nothing, one, own, peers, each_for_peers, counts, captured };

class forgetful_api : public device_api {
 public:
  explicit forgetful_api(const device_options& how, forgets what, std::uint64_t which = 0)
      : device_api(how), what_(what), which_(which) {}
  status_type make_stream(stream_type& made, belay::stream_kind kind) {
    const status_type got = device_api::make_stream(made, kind);
    const std::lock_guard lock(forgetting_);
    maker_[made] = std::this_thread::get_id();  // the rank's
    makers_.insert(maker_[made]);
    return got;
  }
  status_type wait(stream_type on, event_type which) {
    if (which->in_capture.capture != 0) {
      const std::lock_guard lock(forgetting_);
      const bool left_out = ++captured_waits_ == which_ && what_ == forgets::captured;
      return left_out ? status_type() : device_api::wait(on, which);
    }
    const stream_type of = which->at.of.get();
    if (of == nullptr || of == on || which->at.number == 0) return device_api::wait(on, which);  // nothing is before it
    const std::lock_guard lock(forgetting_);
    const forgets kind = maker_[of] == maker_[on] ? forgets::own : forgets::peers;
    bool left_out = ++waits_ == which_ ? what_ == forgets::one : what_ == kind;
    if (kind == forgets::peers && ++waits_for_peers_[maker_[on]] == which_)
      left_out = left_out || what_ == forgets::each_for_peers;
    left_out_ += left_out ? 1 : 0;
    return left_out ? status_type() : device_api::wait(on, which);
  }
  status_type query(event_type which, bool& reached) {
    const status_type got = device_api::query(which, reached);
    reached = reached || forgets_to_wait();
    return got;
  }
  status_type await(event_type which, std::chrono::nanoseconds at_most, bool& reached) {
    if (!forgets_to_wait()) return device_api::await(which, at_most, reached);
    reached = true;
    return {};
  }
  [[nodiscard]] std::uint64_t waits() const { return waits_; }
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }
  [[nodiscard]] std::uint64_t captured_waits() const { return captured_waits_; }

 private:
  [[nodiscard]] bool forgets_to_wait() {
    const std::lock_guard lock(forgetting_);
    return what_ == forgets::counts && makers_.count(std::this_thread::get_id()) == 0;
  }

  forgets what_;
  std::uint64_t which_;
  std::mutex forgetting_;
  std::map<stream_type, std::thread::id> maker_;
  std::set<std::thread::id> makers_;
  std::map<std::thread::id, std::uint64_t> waits_for_peers_;  // by the rank that waits
  std::uint64_t waits_ = 0, captured_waits_ = 0, left_out_ = 0;
};
static_assert(belay::cuda::device_api<forgetful_api>);

}  // namespace fakes
