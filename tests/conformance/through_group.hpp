// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A backend whose groups are the conformance suites' as `belay::group`.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/comm.hpp"

namespace conformance {

template <class Rank>
class grouped_rank {
 public:
  explicit grouped_rank(Rank& rank) : rank_(&rank), world_(rank.world()) {}
  [[nodiscard]] int number() const { return rank_->number(); }
  [[nodiscard]] int size() const { return rank_->size(); }
  [[nodiscard]] const belay::group& world() const { return world_; }
  [[nodiscard]] belay::group group(std::span<const int> members) { return rank_->group(members); }
  [[nodiscard]] std::uint64_t abandoned() const { return rank_->abandoned(); }

 private:
  Rank* rank_;
  belay::group world_;
};

template <class Backend>
struct through_group {
  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return Backend::run(ranks, wrapped(body));
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    return Backend::run(ranks, timeout, wrapped(body));
  }
  template <class Body>
  static auto run_failing(int ranks, Body body) {
    return Backend::run_failing(ranks, wrapped(body));
  }

 private:
  template <class Body>
  static auto wrapped(Body& body) {
    return [&body](auto& rank) {
      grouped_rank made(rank);
      return body(made);
    };
  }
};

}  // namespace conformance
