// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/for_each.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace belay::kernel;

namespace {

// Counts how often an index was done and asked for, and notes which lines were asked for too late.
struct watched {
  std::vector<int>* done;
  std::vector<int>* asked;
  int* late;

  void operator()(std::size_t i) const { ++(*done)[i]; }
  static constexpr std::size_t indices_of_line = 8;
  void prefetch(std::size_t i) const {
    for (std::size_t j = i; j < i + indices_of_line && j < asked->size(); ++j) {
      ++(*asked)[j];
      if ((*done)[j] > 0) ++*late;
    }
  }
};
static_assert(prefetching<watched>);

}  // namespace

TEST_CASE("each index is done once, and what is far enough is asked for once before") {
  for (std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{9}, std::size_t{1000}}) {
    CAPTURE(count);
    std::vector<int> done(count), asked(count);
    int late = 0;
    for_each_index(count, watched{&done, &asked, &late});
    CHECK(done == std::vector<int>(count, 1));
    CHECK(late == 0);
    constexpr std::size_t ahead = lines_ahead * watched::indices_of_line;
    for (std::size_t i = 0; i < count; ++i) CHECK(asked[i] == (i < ahead ? 0 : 1));
  }
}

TEST_CASE("memory beyond an array may be asked for") {
  const float last = 1;
  prefetch(&last, 1 << 20);
  CHECK(last == 1);
}
