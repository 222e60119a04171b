// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A team of several lanes, each of which is a thread, and one of several such teams.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace test {

template <unsigned Lanes>
struct shared_by_lanes {
  std::barrier<> meeting{Lanes};
  std::uint64_t given[Lanes] = {};
};

template <unsigned Lanes>
struct threads {
  static constexpr unsigned lanes = Lanes;
  unsigned lane;
  shared_by_lanes<Lanes>* shared;
  void synchronize() const { shared->meeting.arrive_and_wait(); }
  template <class T>
  [[nodiscard]] T from(unsigned other, T value) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::memcpy(&shared->given[lane], &value, sizeof(T));
    shared->meeting.arrive_and_wait();
    std::memcpy(&value, &shared->given[other], sizeof(T));
    shared->meeting.arrive_and_wait();
    return value;
  }
};

template <unsigned Lanes, class G>
void run_by_threads(std::size_t rows, const G& g) {
  shared_by_lanes<Lanes> shared;
  std::vector<std::jthread> all;
  for (unsigned lane = 0; lane < Lanes; ++lane) {
    all.emplace_back([&shared, &g, lane, rows] {
      for (std::size_t row = 0; row < rows; ++row) g(threads<Lanes>{lane, &shared}, row);
    });
  }
}

// As the warps of a block.
template <unsigned Parts>
struct threads_of_block {
  using part_type = threads<32>;
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
    return threads<lanes>{lane, &shared->all}.from(other, value);
  }
};

template <unsigned Parts, class G>
void run_by_block(std::size_t rows, const G& g) {
  typename threads_of_block<Parts>::shared_type shared;
  std::vector<std::jthread> all;
  for (unsigned lane = 0; lane < 32 * Parts; ++lane)
    all.emplace_back([&shared, &g, lane, rows] {
      for (std::size_t row = 0; row < rows; ++row) g(threads_of_block<Parts>{lane, &shared}, row);
    });
}

}  // namespace test
