// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tokens to their experts and back the usual way: rows are copied into the order of their experts, exchanged, and put
// in the order of the owner's experts; the results go back the same way and are summed. What exchanges is a choice: our
// own all_to_all_v, or MPI's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "belay/belay.hpp"

#if defined(BELAY_BENCH_MPI)
#include <mpi.h>
#endif

namespace bench {

struct expert_sizes {
  std::size_t tokens = 4096, hidden = 2048, k = 8, experts = 64;
  [[nodiscard]] std::size_t rows() const { return tokens * k; }
  [[nodiscard]] std::size_t capacity() const { return rows() * 5 / 4; }
};

/// Rows of a group of Belay's.
template <class Group>
class group_transport {
 public:
  group_transport(const Group& ranks, std::size_t hidden) : ranks_(&ranks), hidden_(hidden) {}
  [[nodiscard]] int rank() const { return ranks_->rank(); }
  [[nodiscard]] int size() const { return ranks_->size(); }
  void gather(std::span<const std::int64_t> mine, std::span<std::int64_t> all) const { ranks_->all_gather(mine, all); }
  void exchange(const float* from, std::span<const int> out, float* to, std::span<const int> in) {
    const auto elements = [this](std::span<const int> rows, std::vector<std::size_t>& counts) {
      counts.clear();
      for (int n : rows) counts.push_back(static_cast<std::size_t>(n) * hidden_);
      return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    };
    const std::size_t sent = elements(out, out_), received = elements(in, in_);
    ranks_->all_to_all_v(std::span(from, sent), out_, std::span(to, received), in_);
  }

 private:
  const Group* ranks_;
  std::size_t hidden_;
  std::vector<std::size_t> out_, in_;
};

#if defined(BELAY_BENCH_MPI)
/// Rows of all processes that mpirun started.
class mpi_transport {
 public:
  explicit mpi_transport(std::size_t hidden) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Type_contiguous(static_cast<int>(hidden), MPI_FLOAT, &row_);
    MPI_Type_commit(&row_);
  }
  mpi_transport(const mpi_transport&) = delete;
  mpi_transport& operator=(const mpi_transport&) = delete;
  ~mpi_transport() { MPI_Type_free(&row_); }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  void gather(std::span<const std::int64_t> mine, std::span<std::int64_t> all) const {
    const int n = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), n, MPI_INT64_T, all.data(), n, MPI_INT64_T, MPI_COMM_WORLD);
  }
  void exchange(const float* from, std::span<const int> out, float* to, std::span<const int> in) {
    const auto starts = [](std::span<const int> rows, std::vector<int>& offsets) {
      offsets.assign(rows.size(), 0);
      std::exclusive_scan(rows.begin(), rows.end(), offsets.begin(), 0);
      return offsets.data();
    };
    MPI_Alltoallv(from, out.data(), starts(out, out_), row_, to, in.data(), starts(in, in_), row_, MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0, size_ = 1;
  MPI_Datatype row_ = MPI_DATATYPE_NULL;
  std::vector<int> out_, in_;
};
#endif

/// One layer's buffers and counts, in private memory of huge pages.
class usual_way {
 public:
  usual_way(const expert_sizes& of, int ranks)
      : of_(of),
        ranks_(static_cast<std::size_t>(ranks)),
        sent_(of.rows() * of.hidden * sizeof(float)),
        received_(of.capacity() * of.hidden * sizeof(float)),
        ordered_(received_.size_bytes()),
        counts_(of.experts),
        next_(of.experts),
        all_(ranks_ * of.experts),
        places_(of.rows()),
        out_(ranks_),
        in_(ranks_) {}

  /// Sends the rows of `x` [tokens, hidden] to the experts `choices` [tokens, k].
  template <class Transport>
  void dispatch(Transport& ranks, const std::int32_t* choices, const float* x) {
    counts_.assign(of_.experts, 0);
    for (std::size_t i = 0; i < of_.rows(); ++i) ++counts_[static_cast<std::size_t>(choices[i])];
    ranks.gather(counts_, all_);
    std::exclusive_scan(counts_.begin(), counts_.end(), next_.begin(), std::int64_t{0});
    for (std::size_t i = 0; i < of_.rows(); ++i) {
      places_[i] = static_cast<std::int32_t>(next_[static_cast<std::size_t>(choices[i])]++);
      copy_rows(floats(sent_), static_cast<std::size_t>(places_[i]), x, i / of_.k, 1);
    }
    const std::size_t local = of_.experts / ranks_, first = static_cast<std::size_t>(ranks.rank()) * local;
    for (std::size_t q = 0; q < ranks_; ++q) {
      out_[q] = in_[q] = 0;
      for (std::size_t e = 0; e < local; ++e) {
        out_[q] += static_cast<int>(counts_[q * local + e]);
        in_[q] += static_cast<int>(all_[q * of_.experts + first + e]);
      }
    }
    ranks.exchange(floats(sent_), out_, floats(received_), in_);
    for_each_range(first, local, [&](std::size_t by_expert, std::size_t by_source, std::size_t count) {
      copy_rows(floats(ordered_), by_expert, floats(received_), by_source, count);
    });
  }
  /// The rows that came, by expert, source rank and token: what the experts read, and here also what they put out.
  [[nodiscard]] std::span<const float> rows() const {
    const auto count = static_cast<std::size_t>(std::accumulate(in_.begin(), in_.end(), 0));
    return {floats(ordered_), count * of_.hidden};
  }
  /// Sends `rows()` back and writes y [tokens, hidden], the sums of each token's rows times `weights` [tokens, k].
  template <class Transport>
  void combine(Transport& ranks, const std::int32_t* choices, const float* weights, float* y) {
    const std::size_t local = of_.experts / ranks_, first = static_cast<std::size_t>(ranks.rank()) * local;
    for_each_range(first, local, [&](std::size_t by_expert, std::size_t by_source, std::size_t count) {
      copy_rows(floats(received_), by_source, floats(ordered_), by_expert, count);
    });
    ranks.exchange(floats(received_), in_, floats(sent_), out_);
    // The sums are those of an exchange, over rows that are all here.
    const belay::placed_rows<float> rows{floats(sent_), 0, choices, places_.data(), local, of_.k, of_.hidden};
    belay::kernel::for_each_row(of_.tokens, belay::pulled_rows<float, float>{rows, weights, y});
  }

 private:
  static float* floats(const belay::host_pages& memory) noexcept { return reinterpret_cast<float*>(memory.data()); }
  void copy_rows(float* to, std::size_t at, const float* from, std::size_t first, std::size_t count) const {
    std::memcpy(to + at * of_.hidden, from + first * of_.hidden, count * of_.hidden * sizeof(float));
  }
  // Rows lie by source and expert as they come, by expert and source as experts read them.
  template <class Move>
  void for_each_range(std::size_t first, std::size_t local, Move move) {
    std::vector<std::size_t> from(ranks_);
    std::exclusive_scan(in_.begin(), in_.end(), from.begin(), std::size_t{0},
                        [](std::size_t sum, auto rows) { return sum + static_cast<std::size_t>(rows); });
    std::size_t to = 0;
    for (std::size_t e = 0; e < local; ++e) {
      for (std::size_t q = 0; q < ranks_; ++q) {
        const auto count = static_cast<std::size_t>(all_[q * of_.experts + first + e]);
        move(to, from[q], count);
        to += count;
        from[q] += count;
      }
    }
  }

  expert_sizes of_;
  std::size_t ranks_;
  belay::host_pages sent_, received_, ordered_;
  std::vector<std::int64_t> counts_, next_, all_;
  std::vector<std::int32_t> places_;
  std::vector<int> out_, in_;
};

}  // namespace bench
