// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What kernels find beside what they compute: losses, rows for which there was no room, indices that are none, numbers
// that are not finite. They write it into one record of fixed size in their device's memory, in the order of their
// stream. The host reads a copy when a step ends (device/findings.hpp).
//
//   struct look_up {
//     const std::int32_t* index;
//     std::size_t limit;
//     belay::kernel::findings_note found;  // frame.found()
//     BELAY_HD void operator()(std::size_t i) const {
//       if (!found.below(index[i], limit, i)) return;
//     }
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The kind of a finding: an index that is none, rows that were not written, a loss that is not finite, a row with an
/// infinity or a NaN that became NaN in 8 bits.
enum class finding_kind : std::uint8_t { nothing, index_outside, rows_outside, not_finite, row_not_finite };

/// The call that a kernel belongs to, as far as it is known. Its strings outlive the step.
struct finding_site {
  /// The `layer_index` of a call that is in no layer.
  static constexpr std::uint32_t no_layer = ~std::uint32_t{0};

  /// The layer's name and number, the micro-batch, and the line of the call.
  const char* layer = "";
  const char* file = "";
  int line = 0;
  std::uint32_t layer_index = no_layer;
  std::uint32_t micro_batch = 0;
};

/// One thing that was found. `index_outside`: `value` at position `number` is not below `limit`. `rows_outside`: the
/// rows of expert `number` end at `value`, before `first` or after `limit`. `not_finite`: the sum is not; `value` has
/// its bits. `row_not_finite`: row `number` of what was quantised.
struct finding {
  /// The kind; the value, the bounds that it is outside of, the index where, and the site.
  finding_kind kind = finding_kind::nothing;
  std::int64_t value = 0;
  std::int64_t first = 0;
  std::int64_t limit = 0;
  std::uint64_t number = 0;
  finding_site site;
};

/// The findings since the step began. The first finding of each sort is kept whole, the others are counted.
struct findings_record {
  std::uint64_t began = 0;  // which step or pass: the engine's epoch
  /// The sum of losses, how often something was not finite, and the first site of each kind.
  double loss = 0;
  std::uint64_t loss_count = 0;   // targets or samples in `loss`, of forward-only passes
  std::uint64_t needed_rows = 0;  // rows that a rank was to receive in one dispatch; 0 without overflow
  std::uint64_t wrong = 0;        // indices and rows outside: what came of them means nothing
  std::uint64_t not_finite = 0;
  std::uint64_t quantized_infinities = 0;  // in what was rounded to 8 bits, where they became NaN
  std::uint64_t quantized_not_finite = 0;  // these and NaNs
  finding first_wrong;
  finding first_not_finite;  // of losses and of what was quantised
};

/// Where a kernel of one call writes what it finds: a pointer and plain data, so it can be a part of every kernel. One
/// without a record notes nothing. Kernels whose elements run at once may all note indices and rows; loss and rows that
/// are needed are added by one lane.
struct findings_note {
  /// Where it is noted, and as whose. Without a record nothing is.
  findings_record* record = nullptr;
  finding_site site;

  /// Whether there is a record.
  BELAY_HD constexpr explicit operator bool() const noexcept { return record != nullptr; }

  /// Adds the loss of `count` targets or samples; one that is not finite is noted.
  BELAY_HD void add_loss(double more, std::uint64_t count = 0) const noexcept {
    if (record == nullptr) return;
    record->loss += more;
    record->loss_count += count;
    if (is_finite(more)) return;
    if (is_first(record->not_finite) && record->quantized_not_finite == 0)
      record->first_not_finite = {finding_kind::not_finite, __builtin_bit_cast(std::int64_t, more), 0, 0, 0, site};
  }
  /// Of row `row` so many infinities, and so many infinities and NaNs together, became NaN in 8 bits.
  BELAY_HD void add_quantized(std::uint64_t infinities, std::uint64_t not_finite, std::size_t row) const noexcept {
    if (record == nullptr || not_finite == 0) return;
    add(record->quantized_infinities, infinities);
    if (add(record->quantized_not_finite, not_finite) == 0 && record->not_finite == 0)
      record->first_not_finite = {finding_kind::row_not_finite, 0, 0, 0, row, site};
  }
  /// A dispatch would have needed so many rows on some rank.
  BELAY_HD void need_rows(std::uint64_t rows) const noexcept {
    if (record != nullptr && rows > record->needed_rows) record->needed_rows = rows;
  }
  /// Whether the index at `position` is at least 0 and below `limit`; where it is not, it is noted.
  template <std::integral Index>
  [[nodiscard]] BELAY_HD bool below(Index index, std::size_t limit, std::size_t position) const noexcept {
    if (static_cast<std::size_t>(index) < limit) return true;
    note({finding_kind::index_outside, static_cast<std::int64_t>(index), 0, static_cast<std::int64_t>(limit), position,
          site});
    return false;
  }
  /// The rows of `expert` end at `end`: before `first`, or after `rows`.
  BELAY_HD void rows_outside(std::size_t expert, std::size_t end, std::size_t first, std::size_t rows) const noexcept {
    note({finding_kind::rows_outside, static_cast<std::int64_t>(end), static_cast<std::int64_t>(first),
          static_cast<std::int64_t>(rows), expert, site});
  }

 private:
  BELAY_HD void note(const finding& what) const noexcept {
    if (record != nullptr && is_first(record->wrong)) record->first_wrong = what;
  }
  BELAY_HD static bool is_first(std::uint64_t& counter) noexcept { return add(counter, 1) == 0; }
  // The counter before. Lanes may be threads of a host too.
  BELAY_HD static std::uint64_t add(std::uint64_t& counter, std::uint64_t more) noexcept {
#if defined(__CUDA_ARCH__)
    return atomicAdd(reinterpret_cast<unsigned long long*>(&counter), static_cast<unsigned long long>(more));
#else
    return __atomic_fetch_add(&counter, more, __ATOMIC_RELAXED);
#endif
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
