// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures that a rank keeps until all agree, and the ranks of a group as those that write files together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/safetensors/writer.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL std::string broadcast_text(const group& ranks, std::string text, int root, where at) {
  std::uint64_t size[] = {text.size()};
  ranks.broadcast(std::span<std::uint64_t>(size), root, at);
  text.resize(static_cast<std::size_t>(size[0]));
  if (!text.empty()) ranks.broadcast(std::span<char>(text.data(), text.size()), root, at);
  return text;
}

BELAY_DECL void file_agreement::attempt(function_ref<void()> body) {
  if (kept_) return;
  try {
    body();
  } catch (const file_error& problem) {
    kept_ = failure{failure_type::of_file, problem.offset(), problem.path(), problem.message()};
  } catch (const input_error& problem) {
    kept_ = failure{failure_type::of_input, 0, {}, said_by(problem)};
  } catch (const usage_error& problem) {
    kept_ = failure{failure_type::of_usage, 0, {}, said_by(problem)};
  }
}

BELAY_DECL void file_agreement::agree(const group& ranks, where at) {
  if (!is_rehearsed(ranks)) {
    const failure mine = kept_.value_or(failure{failure_type::none, 0, {}, {}});
    const std::array<std::uint64_t, 2> own{static_cast<std::uint64_t>(mine.what), mine.offset};
    std::vector<std::uint64_t> all(own.size() * static_cast<std::size_t>(ranks.size()));
    ranks.all_gather(std::span<const std::uint64_t>(own), std::span<std::uint64_t>(all), at);
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const std::uint64_t* const there = all.data() + own.size() * static_cast<std::size_t>(rank);
      if (static_cast<failure_type>(there[0]) == failure_type::none) continue;
      const std::string path = broadcast_text(ranks, mine.path, rank, at);
      const std::string message = broadcast_text(ranks, mine.message, rank, at);
      const int number = ranks.members()[static_cast<std::size_t>(rank)];
      if (static_cast<failure_type>(there[0]) == failure_type::of_file)
        throw file_error(path, there[1], message, at, number);
      const std::string text = "rank " + std::to_string(number) + ": " + message;
      if (static_cast<failure_type>(there[0]) == failure_type::of_input) throw input_error(text, at);
      throw usage_error(text, at);
    }
  }
}

BELAY_DECL std::string file_agreement::said_by(const error& problem) {
  constexpr std::string_view mark = "belay: ";
  const std::string_view all = problem.what();
  const std::size_t found = all.find(mark);
  return std::string(found == std::string_view::npos ? all : all.substr(found + mark.size()));
}

/// The ranks of a group: what one of them meets, all throw when they agree.
class writing_group final : public writing_ranks {
 public:
  explicit writing_group(const group& of) : group_(of) {}

  [[nodiscard]] bool rehearsed() const override { return is_rehearsed(group_); }
  [[nodiscard]] bool makes_files() const override { return group_.rank() == 0; }
  void attempt(function_ref<void()> body) override { problems_.attempt(body); }
  void agree(where at) override { problems_.agree(group_, at); }
  void expect_alike(std::uint64_t declared, where at) override {
    rank_comparison compared;
    const std::uint64_t own[] = {declared};
    if (compared.differ(group_, own, at))
      throw usage_error("ranks that write a model together declare other tensors: " + compared.ranks(group_), at);
  }
  void share(std::string& text, where at) override { text = broadcast_text(group_, std::move(text), 0, at); }
  void add_up(std::span<std::uint64_t> counts, where at) override { group_.all_reduce(counts, sum, at); }

 private:
  group group_;
  file_agreement problems_;
};

BELAY_DECL std::unique_ptr<writing_ranks> written_by(const group& of) { return std::make_unique<writing_group>(of); }

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
