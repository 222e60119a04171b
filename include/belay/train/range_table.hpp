// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranges that a rank on a device owns, as a table that kernels read there: one launch a bucket updates all of its
// ranges, and one divides all gradients and adds their squares. The table is made when a store is bound and stays where
// it is, so that a graph has its address.
// IWYU pragma: private, include "belay/train/store.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/chunked_ranges.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// The ranges of each bucket that a rank owns, as rows in the memory of a device. Ranges whose gradients lie in a file
/// have none.
class range_table {
 public:
  /// Rows of a table and all their chunks.
  struct table_size {
    std::size_t rows = 0, chunks = 0;
  };
  /// Those of rank `rank_in_replica_group[f]` of each replica group f.
  [[nodiscard]] static table_size size_of(const bucket_layout& layout,
                                          std::span<const std::size_t> rank_in_replica_group) {
    table_size out;
    for (const bucket_layout::bucket& each : layout.buckets()) {
      const replica_group_shape& replicas = layout.replica_group_of(each);
      if (replicas.divides_gradients() && replicas.gradients == tier::file) continue;
      layout.each_owned(each, rank_in_replica_group[each.replica_group], [&](const parameter_range& range) {
        ++out.rows;
        out.chunks += chunks_of(range.count);
      });
    }
    return out;
  }

  /// Of the ranges `owned` of `buckets` buckets, whose rows will lie from `rows` on. Gives the rows.
  template <class T>
  [[nodiscard]] std::vector<kernel::chunked_range> describe(std::span<const owned_range<T>> owned, std::size_t buckets,
                                                            const kernel::chunked_range* rows) {
    rows_ = rows;
    parts_.assign(buckets, {});
    std::vector<kernel::chunked_range> out;
    std::size_t before = 0;
    for (const owned_range<T>& range : owned) {
      if (range.gradient_file == nullptr) {
        bucket_part& part = parts_[range.bucket];
        if (part.size.rows++ == 0) part.first_row = out.size();
        const std::size_t chunks = chunks_of(range.count);
        out.push_back({range.value, range.gradient, range.count, all_.chunks, before,
                       range.decay == weight_decay::yes ? std::uint64_t{1} : 0});
        part.size.chunks += chunks;
        ++all_.rows;
        all_.chunks += chunks;
      }
      before += range.count;
    }
    return out;
  }

  /// All ranges, and those of a bucket, with the number of their chunks.
  [[nodiscard]] kernel::chunked_ranges all() const noexcept { return {rows_, all_.rows}; }
  [[nodiscard]] std::size_t chunks() const noexcept { return all_.chunks; }
  [[nodiscard]] kernel::chunked_ranges of_bucket(std::size_t bucket) const noexcept {
    return {rows_ + parts_[bucket].first_row, parts_[bucket].size.rows};
  }
  [[nodiscard]] std::size_t chunks_of_bucket(std::size_t bucket) const noexcept { return parts_[bucket].size.chunks; }

 private:
  struct bucket_part {
    std::size_t first_row = 0;
    table_size size;
  };
  const kernel::chunked_range* rows_ = nullptr;
  table_size all_;
  std::vector<bucket_part> parts_;
};

/// The table of a store on a device, and what a commit does with it: one launch divides the gradients that this rank
/// owns and adds the squares of their chunks, one copy tells the host, which waits once. `T` are the parameters; of a
/// rehearsal it is the memory alone.
template <class Run, class T>
class gradient_division final : public update_observer {
  using memory_type = typename Run::memory_type;
  using gradient_type = compute_type_t<T>;
  static constexpr bool computes = device_region<memory_type>;

 public:
  /// `size_of(rank)` is that of each rank of the world. `owned` and `run` outlive it. Memory of the run: "ranges of
  /// parameters" and "squares of gradients" on the device, these in tier pinned too.
  gradient_division(Run& run, std::span<const owned_range<T>> owned, std::size_t buckets,
                    function_ref<range_table::table_size(int)> size_of, where at)
      : run_(&run) {
    const auto all_chunks_of = [&](int rank) { return size_of(rank).chunks; };
    constexpr const char* squares = "squares of gradients";
    const auto rows = run.template lease_shard<kernel::chunked_range>(
        tier::device, [&](int rank) { return size_of(rank).rows; }, "ranges of parameters", at);
    squares_ = run.template lease_shard<double>(tier::device, all_chunks_of, squares, at);
    told_ = run.template lease_shard<double>(tier::pinned, all_chunks_of, squares, at);
    if constexpr (computes) {
      scale_ = std::make_shared<scale_type>(run.engine().activations().memory(), at);
      run.keep(scale_);
      const std::vector<kernel::chunked_range> filled = table_.describe(owned, buckets, rows.data());
      if (!filled.empty())
        run.engine().access(at)->place(rows.data(), filled.data(), filled.size() * sizeof filled[0], at);
    }
  }
  gradient_division(const gradient_division&) = delete;  // observations point to it
  gradient_division& operator=(const gradient_division&) = delete;

  [[nodiscard]] const range_table& table() const noexcept { return table_; }

  void divide(double scale, where at) override {
    divide(scale, at, [this] { queue_division(); });
  }
  /// Calls `queue()`, which queues the division, or launches a graph that has it.
  template <class Queue>
  void divide([[maybe_unused]] double scale, [[maybe_unused]] where at, [[maybe_unused]] const Queue& queue) {
    if constexpr (computes) {
      scale_->write(run_->engine().compute(), static_cast<gradient_type>(scale), at);
      queue();
      divided_ = run_->engine().compute().record(at);
    }
  }
  void queue_division() {
    if constexpr (computes) {
      if (table_.chunks() == 0) return;
      using kernel_type = kernel::scaled_squares_of_ranges<gradient_type>;
      auto& kit = run_->engine().kit();
      kit.teams(kernel_type::rows_of(table_.chunks()),
                kernel_type{table_.all(), table_.chunks(), scale_->get(), squares_.data()});
      queue_copy(kit.stream(), told_.data(), squares_.data(), table_.chunks() * sizeof(double));
    }
  }
  [[nodiscard]] std::span<const double> squares(where at) override {
    divided_.synchronize(at);
    return told_;
  }

 private:
  using scale_type = typename numbers_in<gradient_type, memory_type>::type;

  Run* run_;
  range_table table_;
  std::span<double> squares_, told_;   // of chunks of gradients, on the device and for the host
  std::shared_ptr<scale_type> scale_;  // 1 / divisor, on the device
  stream_event divided_;
};

}  // namespace belay::inline BELAY_ABI
