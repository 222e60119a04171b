// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A team of several lanes, and one of several such teams. Lanes are fibers, which take turns in a seeded order; under
// ThreadSanitizer they are threads, so that it sees two that do not wait for each other.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "fakes/fibers.hpp"
#include "test_length.hpp"

namespace test {

template <unsigned Lanes>
struct shared_by_lanes {
  std::conditional_t<threads_are_sanitized, std::barrier<>, fakes::fibers::meeting> meeting{Lanes};
  std::uint64_t given[2][Lanes] = {};
  unsigned exchanges[Lanes] = {};
};

template <unsigned Lanes>
struct team_of_lanes {
  static constexpr unsigned lanes = Lanes;
  unsigned lane;
  shared_by_lanes<Lanes>* shared;
  void synchronize() const { shared->meeting.arrive_and_wait(); }
  template <class T>
  [[nodiscard]] T from(unsigned other, T value) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    auto& given = shared->given[shared->exchanges[lane]++ % 2];  // those of the exchange before may still be read
    std::memcpy(&given[lane], &value, sizeof(T));
    shared->meeting.arrive_and_wait();
    std::memcpy(&value, &given[other], sizeof(T));
    return value;
  }
};

// As the warps of a block.
template <unsigned Parts>
struct block_of_lanes {
  using part_type = team_of_lanes<32>;
  struct shared_type {
    shared_by_lanes<32 * Parts> all;
    shared_by_lanes<32> parts[Parts];
  };
  static constexpr unsigned lanes = 32 * Parts;
  unsigned lane;
  shared_type* shared;
  [[nodiscard]] part_type part() const { return {lane % 32, &shared->parts[lane / 32]}; }
  void synchronize() const { shared->all.meeting.arrive_and_wait(); }
  template <class T>
  [[nodiscard]] T from(unsigned other, T value) const {
    return team_of_lanes<lanes>{lane, &shared->all}.from(other, value);
  }
};

/// f(lane) of each lane.
template <class F>
void run_lanes(unsigned lanes, std::size_t seed, const F& f) {
  if constexpr (threads_are_sanitized) {
    std::vector<std::jthread> all;
    for (unsigned lane = 0; lane < lanes; ++lane) all.emplace_back([&f, lane] { f(lane); });
  } else {
    fakes::fibers(lanes, seed).run(f);
  }
}

template <unsigned Lanes, class G>
void run_by_lanes(std::size_t rows, const G& g) {
  shared_by_lanes<Lanes> shared;
  run_lanes(Lanes, rows, [&](unsigned lane) {
    for (std::size_t row = 0; row < rows; ++row) g(team_of_lanes<Lanes>{lane, &shared}, row);
  });
}

template <unsigned Parts, class G>
void run_by_block(std::size_t rows, const G& g) {
  typename block_of_lanes<Parts>::shared_type shared;
  run_lanes(32 * Parts, rows, [&](unsigned lane) {
    for (std::size_t row = 0; row < rows; ++row) g(block_of_lanes<Parts>{lane, &shared}, row);
  });
}

}  // namespace test
