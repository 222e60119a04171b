// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A communicator for tests of the parallel and train rooms, which may not know a backend: ranks are threads that share
// a barrier and a list of pointers. Started operations run at the next wait, in launch order over all groups of a rank.
// Ranks that launch in different orders therefore wait for each other, and fail after a deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"

namespace fake {

/// The state that the ranks of one group share.
class shared_state {
 public:
  explicit shared_state(std::size_t ranks) : data(ranks) {}

  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = round_;
    if (++arrived_ == data.size()) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
      return;
    }
    if (!all_here_.wait_for(lock, std::chrono::seconds(20), [&] { return round_ != mine; }))
      throw std::runtime_error("the other ranks did not come");
  }

  std::vector<const void*> data;

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

/// The operations that a rank has started, over all its groups.
class queue final : public belay::completion_source {
 public:
  explicit queue(std::size_t capacity = 1024) { work_.reserve(capacity); }
  [[nodiscard]] bool over(std::uint64_t ticket) const noexcept override { return done_ >= ticket; }
  [[nodiscard]] bool wait_until(std::uint64_t ticket, std::chrono::steady_clock::time_point,
                                belay::where) const override {
    return over(ticket);
  }
  void expect_done(std::uint64_t, belay::where) const override {}
  void hand_to_stream(std::uint64_t, belay::operation, belay::where) override {}
  void wait(std::uint64_t ticket, belay::operation, belay::where) override {
    for (; done_ < ticket; ++done_) work_[done_]();
  }
  void abandon(std::uint64_t, belay::where) noexcept override {}

  belay::pending start(std::function<void()> work, std::string what, belay::where at) {
    work_.push_back(std::move(work));
    log.push_back(std::move(what));
    const std::shared_ptr<belay::completion_source> outlives(std::shared_ptr<void>(), this);
    return belay::pending(outlives, work_.size(), belay::operation::none, at);
  }
  std::vector<std::string> log;  // launched operations, in order

 private:
  std::vector<std::function<void()>> work_;
  std::uint64_t done_ = 0;
};

class group {
 public:
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
  group(shared_state& shared, queue& own, int rank) : shared_(&shared), queue_(&own), rank_(rank) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(shared_->data.size()); }
  void barrier(belay::where = {}) const { shared_->arrive_and_wait(); }

  template <class T, class Op>
  void all_reduce(std::span<T> inout, Op op, belay::where = {}) const {
    reduce(inout, 0, inout.size(), op);
  }
  template <class T, class Op>
  void reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op, belay::where = {}) const {
    reduce(inout, first_of(counts, rank_), counts[static_cast<std::size_t>(rank_)], op);
  }
  template <class T>
  void all_gather(std::span<const T> in, std::span<T> out, belay::where = {}) const {
    publish(in.data());
    for (int r = 0; r < size(); ++r)
      std::copy_n(of<T>(r), in.size(), out.data() + static_cast<std::size_t>(r) * in.size());
    shared_->arrive_and_wait();
  }
  template <class T>
  void all_gather_v(std::span<T> inout, std::span<const std::size_t> counts, belay::where = {}) const {
    publish(inout.data());
    for (int r = 0; r < size(); ++r) {
      const std::size_t first = first_of(counts, r);
      if (r != rank_) std::copy_n(of<T>(r) + first, counts[static_cast<std::size_t>(r)], inout.data() + first);
    }
    shared_->arrive_and_wait();
  }
  template <class T, class Op>
  [[nodiscard]] belay::pending start_all_reduce(std::span<T> inout, Op op,
                                                const belay::start_order& how = belay::where{}) const {
    return queue_->start([self = *this, inout, op] { self.all_reduce(inout, op); },
                         "all_reduce " + std::to_string(inout.size()), how.at);
  }
  template <class T, class Op>
  [[nodiscard]] belay::pending start_reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op,
                                                      const belay::start_order& how = belay::where{}) const {
    return queue_->start([self = *this, inout, counts, op] { self.reduce_scatter_v(inout, counts, op); },
                         "reduce_scatter_v " + std::to_string(inout.size()), how.at);
  }
  template <class T>
  [[nodiscard]] belay::pending start_all_gather_v(std::span<T> inout, std::span<const std::size_t> counts,
                                                  const belay::start_order& how = belay::where{}) const {
    return queue_->start([self = *this, inout, counts] { self.all_gather_v(inout, counts); },
                         "all_gather_v " + std::to_string(inout.size()), how.at);
  }

 private:
  static std::size_t first_of(std::span<const std::size_t> counts, int rank) {
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[static_cast<std::size_t>(r)];
    return first;
  }
  template <class T>
  const T* of(int rank) const {
    return static_cast<const T*>(shared_->data[static_cast<std::size_t>(rank)]);
  }
  void publish(const void* data) const {
    shared_->data[static_cast<std::size_t>(rank_)] = data;
    shared_->arrive_and_wait();
  }
  template <class T, class Op>
  void reduce(std::span<T> inout, std::size_t first, std::size_t count, Op) const {
    publish(inout.data());
    std::vector<T> result(of<T>(0) + first, of<T>(0) + first + count);
    for (int r = 1; r < size(); ++r)
      for (std::size_t i = 0; i < count; ++i) result[i] = Op::apply(result[i], of<T>(r)[first + i]);
    shared_->arrive_and_wait();
    std::copy(result.begin(), result.end(), inout.data() + first);
  }

  shared_state* shared_;
  queue* queue_;
  int rank_;
};

static_assert(belay::communicator<group>);

/// Runs `body(rank)` on `ranks` threads; rethrows the first exception.
template <class Body>
void run_ranks(std::size_t ranks, Body&& body) {
  std::vector<std::exception_ptr> failures(ranks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(static_cast<int>(r));
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace fake
