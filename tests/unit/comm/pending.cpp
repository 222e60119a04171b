// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/pending.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

namespace {

// Remembers what was asked of it.
class fake_source final : public belay::completion_source {
 public:
  [[nodiscard]] bool over(std::uint64_t number) const noexcept override { return number <= done; }
  [[nodiscard]] bool wait_until(std::uint64_t number, std::chrono::steady_clock::time_point,
                                belay::where) const override {
    return over(number);
  }
  void expect_done(std::uint64_t, belay::where) const override {}
  void hand_to_stream(std::uint64_t number, belay::operation, belay::where) override { handed.push_back(number); }
  void wait(std::uint64_t number, belay::operation, belay::where) override { waited.push_back(number); }
  void abandon(std::uint64_t number, belay::where) noexcept override { abandoned.push_back(number); }

  std::uint64_t done = 0;
  std::vector<std::uint64_t> waited, abandoned, handed;
};

belay::pending start(fake_source& source, std::uint64_t number) {
  const std::shared_ptr<belay::completion_source> outlives(std::shared_ptr<void>(), &source);
  return belay::pending(outlives, number, belay::operation::barrier, belay::where::current());
}

belay::pending start_named(fake_source& source, std::uint64_t number) {
  auto made = start(source, number);
  return std::move(made).hand_over();
}

}  // namespace

static_assert(!std::is_copy_constructible_v<belay::pending> && std::is_nothrow_move_constructible_v<belay::pending>);

TEST_CASE("a pending is waited for once, through moves and hand-overs") {
  fake_source source;
  {
    auto first = start_named(source, 1);
    CHECK_FALSE(first.ready());
    source.done = 1;
    CHECK(first.ready());
    auto second = std::move(first);
    std::move(second).wait();
  }
  CHECK(source.waited == std::vector<std::uint64_t>{1});
  CHECK(source.abandoned.empty());
}

TEST_CASE("what is dropped is abandoned: in a container, under an assignment") {
  fake_source source;
  {
    std::vector<belay::pending> many(3);
    many[0] = start(source, 1);
    many[1] = start(source, 2);
    many[1] = start(source, 3);  // loses 2
    CHECK(source.abandoned == std::vector<std::uint64_t>{2});
    std::move(many[0]).wait();
  }
  CHECK(source.waited == std::vector<std::uint64_t>{1});
  CHECK(source.abandoned == std::vector<std::uint64_t>{2, 3});
}

TEST_CASE("waiting twice is a usage error") {
  fake_source source;
  std::vector<belay::pending> one(1);
  one[0] = start(source, 1);
  std::move(one[0]).wait();
  CHECK_THROWS_AS(std::move(one[0]).wait(), belay::usage_error);
  CHECK(source.waited.size() == 1);
}
