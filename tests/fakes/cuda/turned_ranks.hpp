// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are threads of a world of the host, whose waits for each other end in turns: where the world lets a rank
// or its communication thread go on, it waits for its turn before it does.
//
//   fakes::turns turns(seed);
//   belay::cuda::world world(api, fakes::in_turns(turns, belay::host::world(3)));
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/comm.hpp"
#include "fakes/cuda/turns.hpp"

namespace fakes {

/// A wait for other threads, from here to where it goes.
class turned_wait {
 public:
  turned_wait(turns& by, const char* what) : by_(&by), what_(what) { by.note(what); }
  turned_wait(const turned_wait&) = delete;
  turned_wait& operator=(const turned_wait&) = delete;
  ~turned_wait() { by_->pass(what_); }

 private:
  turns* by_;
  const char* what_;
};

/// Blocking operations of `Calls`, in turns.
template <class Calls>
class turned_calls : public belay::group_operations<turned_calls<Calls>> {
 public:
  turned_calls(turns& by, const Calls& of) noexcept : by_(&by), of_(&of) {}

  [[nodiscard]] int rank() const noexcept { return of_->rank(); }
  [[nodiscard]] int size() const noexcept { return of_->size(); }
  void run_call(const belay::op_call& call) const {
    const turned_wait waits(*by_, belay::name(call.what()));
    of_->run_call(call);
  }

 private:
  turns* by_;
  const Calls* of_;
};

/// The operations that a rank has started: whoever has waited for it goes on in a turn.
class turned_source final : public belay::completion_source {
 public:
  turned_source(turns& by, belay::stream_event first) : by_(&by), of_(std::move(first)) {}

  [[nodiscard]] bool over(std::uint64_t number) const noexcept override { return of_.source()->over(number); }
  [[nodiscard]] bool wait_until(std::uint64_t number, std::chrono::steady_clock::time_point deadline,
                                belay::where at) const override {
    const turned_wait waits(*by_, "wait");
    return of_.source()->wait_until(number, deadline, at);
  }
  void expect_done(std::uint64_t number, belay::where at) const override { of_.source()->expect_done(number, at); }
  void wait(std::uint64_t number, belay::operation, belay::where at) override {
    static_cast<void>(wait_until(number, std::chrono::steady_clock::time_point::max(), at));
    expect_done(number, at);
  }
  void hand_to_stream(std::uint64_t, belay::operation, belay::where) override {}
  void abandon(std::uint64_t, belay::where) noexcept override {}

 private:
  turns* by_;
  belay::stream_event of_;  // one that it has; it is asked for the others
};

template <class Group>
class turned_group : public belay::group_operations<turned_group<Group>> {
 public:
  turned_group(turns& by, Group of, int world_rank) : by_(&by), of_(std::move(of)), number_(world_rank) {}

  [[nodiscard]] int rank() const noexcept { return of_.rank(); }
  [[nodiscard]] int size() const noexcept { return of_.size(); }
  [[nodiscard]] std::span<const int> members() const noexcept { return of_.members(); }
  [[nodiscard]] turned_group within(std::chrono::duration<double> timeout, belay::where at) const {
    return {*by_, of_.within(timeout, at), number_};
  }
  [[nodiscard]] auto checked_call(const char* what, const belay::where& at) const { return of_.checked_call(what, at); }
  template <class Work>
  [[nodiscard]] belay::pending start_composite(belay::operation what, const Work& work,
                                               const belay::start_order& how) const {
    const auto run = [by = by_, number = number_, work]<class Calls>(const Calls& calls) {
      const turns::work mine(*by, number);
      work(turned_calls<Calls>(*by, calls));
    };
    by_->note_started();
    return turned(what, of_.start_composite(what, run, how), how.at);
  }
  template <class Work>
  [[nodiscard]] belay::pending start_local(belay::operation what, const Work& work,
                                           const belay::start_order& how) const {
    const auto run = [by = by_, number = number_, work] {
      const turns::work mine(*by, number);
      work();
    };
    by_->note_started();
    return turned(what, of_.start_local(what, run, how), how.at);
  }
  void run_call(const belay::op_call& call) const {
    const turned_wait waits(*by_, belay::name(call.what()));
    of_.run_call(call);
  }
  [[nodiscard]] belay::pending start_call(const belay::op_call& call, const belay::start_order& how) const {
    by_->note_started();
    return turned(call.what(), of_.start_call(call, how), how.at);
  }

 private:
  [[nodiscard]] belay::pending turned(belay::operation what, belay::pending started, const belay::where& at) const {
    const belay::stream_event event = started.event();
    std::move(started).in_start_order(at);
    return {std::make_shared<turned_source>(*by_, event), event.place(), what, at, event.clock()};
  }

  turns* by_;
  Group of_;
  int number_;
};

template <class Rank>
class turned_rank {
 public:
  using group_type = turned_group<typename Rank::group_type>;

  turned_rank(turns& by, Rank& of) : by_(&by), of_(&of), world_(by, of.world(), of.number()) {}

  [[nodiscard]] int number() const noexcept { return of_->number(); }
  [[nodiscard]] int size() const noexcept { return of_->size(); }
  [[nodiscard]] const group_type& world() const noexcept { return world_; }
  [[nodiscard]] group_type group(std::span<const int> members, belay::where at = belay::where::current()) {
    return {*by_, of_->group(members, at), number()};
  }
  [[nodiscard]] auto state() const { return of_->state(); }
  [[nodiscard]] auto watch() const { return of_->watch(); }

 private:
  turns* by_;
  Rank* of_;
  group_type world_;
};

/// A world of threads whose ranks take turns, also where they wait for each other.
template <class Control>
class in_turns {
 public:
  static constexpr bool ranks_are_threads = true;
  in_turns(turns& by, Control control) : by_(&by), control_(std::move(control)) {}

  [[nodiscard]] int size() const { return control_.size(); }
  template <class Body>
  auto run(Body&& body) const {
    by_->begin(size());
    return control_.run([&](auto& rank) {
      const turns::member here(*by_, rank.number());
      turned_rank self(*by_, rank);
      return body(self);
    });
  }

 private:
  turns* by_;
  Control control_;
};

}  // namespace fakes
