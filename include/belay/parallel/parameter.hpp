// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter is a named tensor of the model. It is born sharded: it is made from a specification and knows only the
// part that this rank holds, so no whole tensor ever exists. Its first values depend on seed, name and global offset
// alone, so every mesh starts from the same model. Whether it is trained is part of its type: a frozen parameter has
// no gradient, and asking for one does not compile.
//
//   belay::parameter<float> whole{{.name = "wte", .shape = {256, 64}, .first_values = belay::initial::normal(0.02)}};
//   using stacked = belay::shard<0, belay::axis::expert>;  // cut over the ranks of the expert axis
//   belay::parameter<float, stacked> part{{.name = "up", .shape = {8, 64, 64}}, {2, 2}};  // experts 2 and 3
//   using both = belay::placed<stacked, belay::shard<1, belay::axis::tensor>>;  // a box: of experts and of their rows
//   belay::parameter<float, both> box{{.name = "up", .shape = {8, 64, 64}}, mesh};
//   part.bind(values, grads);  // `part.local_size()` elements each
//   part.initialise(seed);
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/core/box.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/host_access.hpp"
#include "belay/parallel/file_shards.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter_shape.hpp"  // IWYU pragma: export
#include "belay/parallel/placement.hpp"
#include "belay/step/contribution.hpp"

namespace belay::inline BELAY_ABI {

/// The first values of a parameter. Those that are drawn depend on seed, name and global offset alone.
class initial {
 public:
  /// The kinds of first values: one number, normal numbers by counter, or what a filler gives.
  enum class initializer { constant, normal, filled };

  /// All elements `value`.
  [[nodiscard]] static constexpr initial constant(double value) noexcept { return {initializer::constant, value}; }
  /// Normal with mean 0.
  [[nodiscard]] static constexpr initial normal(double stddev) noexcept { return {initializer::normal, stddev}; }
  /// The values come from `fill`, which the owner of the parameter calls: from a file, or a function.
  [[nodiscard]] static constexpr initial filled() noexcept { return {initializer::filled, 0}; }

  /// The kind, and its number: the value, or the deviation.
  [[nodiscard]] constexpr initializer how() const noexcept { return kind_; }
  [[nodiscard]] constexpr double value() const noexcept { return value_; }

 private:
  constexpr initial(initializer how, double value) noexcept : kind_(how), value_(value) {}
  initializer kind_;
  double value_;
};

/// Standard normal numbers by index. Number `i` is computed from a hash of seed, name and `i`, so any part of the
/// sequence can be made on any rank, in any order, with the same bits.
class counted_normal {
 public:
  /// Of a parameter with that name; the same numbers on each rank and for every cut.
  constexpr counted_normal(std::uint64_t seed, std::string_view name) noexcept
      : key_(mix(fnv1a(mix(seed)).add_text(name).value())) {}

  /// Number `index`, of mean 0 and deviation 1.
  [[nodiscard]] double operator()(std::uint64_t index) const noexcept {
    const std::uint64_t first = mix(key_ + index * 0x9e3779b97f4a7c15u);
    const std::uint64_t second = mix(first ^ 0xd1b54a32d192ed03u);
    constexpr double scale = 1.0 / 9007199254740992.0;                       // 2^-53
    const double radius = (static_cast<double>(first >> 11) + 1.0) * scale;  // in (0, 1]
    const double angle = static_cast<double>(second >> 11) * scale;          // in turns, [0, 1)
    // The C library's functions: to include <cmath> costs more than the rest of this header.
    return __builtin_sqrt(-2.0 * __builtin_log(radius)) * __builtin_cos(6.283185307179586 * angle);
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t key_;
};

/// Whether the optimizer decays the parameter: usually matrices and embeddings, not norms.
enum class weight_decay { no, yes };

/// Where the uses of a tied parameter are: layers of one stage that point to it; or stages of a pipeline, each of which
/// lists a parameter of its own of that name, and uses it once.
enum class tied_over : std::uint8_t { layers, stages };

/// A parameter independently of the mesh. A tied parameter, which several layers share, is one parameter with as many
/// `uses`: each of them contributes to its gradient once a micro-batch. Stages that share one have a specification that
/// says so, alike on all of them; in a pipeline of one stage all uses are layers of that. `joins` names the tensors
/// that a stack of several matrices an entry is made of, in equal parts of dimension 1; each has the first values of a
/// parameter of its name. It is empty where the parameter is one tensor. `follows` names the parameter before it in the
/// model, of the same layer, whose memory its own continues: a layer may multiply by the rows of both at once
/// (`joined_rows`). Each stays a parameter of its own.
struct parameter_spec {
  std::string name;                             // decides the first values: the same on every mesh, unique in the model
  parameter_shape shape;                        // the global one
  initial first_values = initial::constant(0);  // written by the store, or by `initialise`
  weight_decay decay = weight_decay::yes;       // whether the optimizer decays it
  std::size_t uses = 1;                         // layers that share it, or stages:
  tied_over tied = tied_over::layers;           // where these are
  std::vector<std::string> joins = {};          // tensors that it is made of
  std::string follows = {};                     // the parameter that it lies behind
};

/// Writes the first values of the global elements from `first` on, which do not come from a filler: those that are
/// drawn are normal numbers, of each tensor that the parameter joins by its own name.
template <class T>
void write_first_values(const parameter_spec& spec, std::uint64_t seed, std::size_t first, std::span<T> out) {
  const initial how = spec.first_values;
  if (how.how() == initial::initializer::constant) {
    for (T& x : out) x = static_cast<T>(static_cast<compute_type_t<T>>(how.value()));
    return;
  }
  const std::vector<std::string>& joins = spec.joins;
  const std::size_t tensors = joins.empty() ? 1 : joins.size();
  const std::size_t size = joins.empty() ? spec.shape.size() : spec.shape.product(1, spec.shape.rank()) / tensors;
  for (std::size_t i = 0; i < out.size();) {
    const std::size_t block = (first + i) / size;
    const counted_normal random(seed, joins.empty() ? spec.name : joins[block % tensors]);
    // What the element is called in a tensor of its own.
    for (std::size_t j = (first + i) % size; j < size && i < out.size(); ++i, ++j)
      out[i] = static_cast<T>(static_cast<compute_type_t<T>>(how.value() * random(block / tensors * size + j)));
  }
}

/// The parameter is updated by the optimizer.
struct trainable {};
/// The parameter never changes: no gradient, no optimizer state.
struct frozen {};

/// One of the two.
template <class Learning>
concept learning = std::is_same_v<Learning, trainable> || std::is_same_v<Learning, frozen>;

/// A parameter that has a gradient.
template <class Learning>
concept has_gradient = std::is_same_v<Learning, trainable>;

/// The local part of a parameter's values or of its gradient: a pointer with the shape that the parameter has. It
/// becomes a view of as many dimensions.
template <class T>
class parameter_values {
 public:
  /// `shape` outlives this: a parameter's.
  constexpr parameter_values(T* data, const parameter_shape& shape) noexcept : data_(data), shape_(&shape) {}
  /// The first element, the shape of the local part, and its elements.
  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr const parameter_shape& shape() const noexcept { return *shape_; }
  [[nodiscard]] constexpr std::size_t extent(std::size_t axis) const noexcept { return (*shape_)[axis]; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return shape_->size(); }

  /// Throws usage_error where the parameter has another number of dimensions.
  template <std::size_t Rank>
  [[nodiscard]] view<T, Rank> as(where at = where::current()) const {
    if (shape_->rank() != Rank) [[unlikely]]
      throw usage_error("a parameter of " + std::to_string(shape_->rank()) + " dimensions is taken for a view of " +
                            std::to_string(Rank),
                        at);
    extents<Rank> extents{};
    for (std::size_t axis = 0; axis < Rank; ++axis) extents[axis] = (*shape_)[axis];
    return {data_, extents};
  }
  template <std::size_t Rank>
  operator view<T, Rank>() const {
    return as<Rank>();
  }
  template <std::size_t Rank>
    requires(!std::is_const_v<T>)
  operator view<const T, Rank>() const {
    return as<Rank>();
  }

 private:
  T* data_;
  const parameter_shape* shape_;
};

/// The base of `parameter` that does not depend on its placement or on whether it is trained. Lists of parameters point
/// to it, so a parameter must not be moved once it is in a list.
template <class T>
class parameter_base {
 public:
  using value_type = T;

  [[nodiscard]] const std::string& name() const noexcept { return spec_.name; }  // unique in the model
  /// The global shape.
  [[nodiscard]] const parameter_shape& shape() const noexcept { return spec_.shape; }
  [[nodiscard]] const parameter_spec& spec() const noexcept { return spec_; }
  [[nodiscard]] weight_decay decay() const noexcept { return spec_.decay; }
  /// Layers, or stages, that share the parameter: 1 unless it is tied.
  [[nodiscard]] std::size_t uses() const noexcept { return spec_.uses; }
  [[nodiscard]] bool tied_over_stages() const noexcept { return spec_.tied == tied_over::stages; }
  [[nodiscard]] std::size_t global_size() const noexcept { return spec_.shape.size(); }

  /// The part of the parameter that is held here, which ZeRO may divide further.
  [[nodiscard]] const tensor_box& local_box() const noexcept { return box_; }
  /// Along which directions of the mesh it is cut: ranks along the others hold the same box.
  [[nodiscard]] axis_set cut_directions() const noexcept { return cut_; }
  /// The shape of that part.
  [[nodiscard]] const parameter_shape& local_shape() const noexcept { return local_shape_; }
  [[nodiscard]] std::size_t local_size() const noexcept { return local_shape_.size(); }
  /// One extent of that shape.
  [[nodiscard]] std::size_t extent(std::size_t axis) const noexcept { return local_shape()[axis]; }
  /// The local part, row-major; its data are null until bound.
  [[nodiscard]] parameter_values<const T> values() const noexcept { return {value_, local_shape()}; }

  /// Calls `visit(global_offset, local_offset, count)` for every contiguous run of the local part, in order.
  void each_run(function_ref<void(std::size_t, std::size_t, std::size_t)> visit) const;

  /// Whether this rank keeps ranges of the local part only, the others being on its peers.
  [[nodiscard]] bool divided() const noexcept { return divided_; }
  /// It keeps `ranges`, in order, from now on; the whole local part has memory only while it is gathered.
  void hold(std::vector<held_range<T>> ranges) {
    held_ = std::move(ranges);
    divided_ = true;
    value_ = nullptr;
  }
  /// Values that this rank keeps are seen through `access`, which outlives the parameter's use: they lie in memory that
  /// the host does not address.
  void set_host_view(const host_access* access) noexcept {
    access_ = access;
    for (held_range<T>& range : held_) range.access = access;
  }
  /// Of a divided parameter: the local part has memory for the time, or none.
  void place_values(T* values) noexcept { value_ = values; }

  /// Calls `visit(local_offset, std::span<T>)` for every range of the local part that this rank keeps, in order. One
  /// that is in a file or on a device comes in pieces, and goes back as `visit` leaves it.
  void each_kept(function_ref<void(std::size_t, std::span<T>)> visit) const;
  /// Calls `visit(held_range)` for the same ranges, wherever they lie.
  void each_kept_range(function_ref<void(const held_range<T>&)> visit) const;
  /// Calls `visit(global_offset, std::span<T>)` for every contiguous run of what this rank keeps, in order.
  void each_held(function_ref<void(std::size_t, std::span<T>)> visit) const;

  /// Writes the first values of the local part. A global element gets the same value on every mesh. The parameter must
  /// be bound. One made with `initial::filled()` is a usage_error: call `fill`.
  void initialise(std::uint64_t seed, where at = where::current());

  /// Calls `filler(global_offset, std::span<T>)` for every contiguous run of what this rank keeps of the local part.
  void fill(function_ref<void(std::size_t, std::span<T>)> filler, where at = where::current());

 protected:
  /// `box_of(shape)` is the box held here, asked once the entries fit the shape.
  parameter_base(parameter_spec&& spec, std::span<const placement_entry> entries, axis_set cut,
                 function_ref<tensor_box(const parameter_shape&)> box_of, where at);
  // Out of the class, so that a model's layers call them.
  ~parameter_base();
  parameter_base(const parameter_base&) = delete;
  parameter_base& operator=(const parameter_base&) = delete;
  parameter_base(parameter_base&&) noexcept;
  parameter_base& operator=(parameter_base&&) noexcept;

  /// The specification that the parameter was made of, the part that this rank has, and where its values are.
  parameter_spec spec_;
  tensor_box box_;
  axis_set cut_;
  parameter_shape local_shape_;
  T* value_ = nullptr;
  std::vector<held_range<T>> held_ = {};
  const host_access* access_ = nullptr;  // of whole values
  bool divided_ = false;
};

/// A parameter with a gradient, whatever its placement. The gradient is in the type that T is computed with: of a bf16
/// parameter it is float.
template <class T>
class trainable_parameter : public parameter_base<T> {
 public:
  using gradient_type = compute_type_t<T>;

  /// The local part, row-major; null until bound. The memory is the engine's and outlives every step.
  [[nodiscard]] T* value() const noexcept { return this->value_; }
  /// The gradient of the local part, to which backwards add; null until bound.
  [[nodiscard]] gradient_type* gradient() const noexcept { return gradient_; }

  /// The gradient with the shape of the local part; its data are null until bound. Layers ask their frame for it:
  /// `frame.add_to(parameter)`.
  [[nodiscard]] parameter_values<gradient_type> gradient_values() const noexcept {
    return {gradient_, this->local_shape()};
  }

  /// Gives the parameter its memory: `local_size()` elements each. `contribution`, where there is one, is told of every
  /// backward that has added to the gradient, and outlives the parameter's use.
  void bind(T* value, gradient_type* gradient, contribution_target* contribution = nullptr) noexcept {
    this->value_ = value;
    gradient_ = gradient;
    contribution_ = contribution;
  }

  /// The gradient has memory for the time, or none.
  void place_gradient(gradient_type* gradient) noexcept { gradient_ = gradient; }

  /// The target that is told of every backward that has added to the gradient; null where the caller of `bind` counts
  /// by itself.
  [[nodiscard]] contribution_target* contribution() const noexcept { return contribution_; }

 protected:
  using parameter_base<T>::parameter_base;

 private:
  gradient_type* gradient_ = nullptr;
  contribution_target* contribution_ = nullptr;
};

/// A parameter that never changes, whatever its placement.
template <class T>
class frozen_parameter : public parameter_base<T> {
 public:
  /// The local part, row-major; null until bound.
  [[nodiscard]] const T* value() const noexcept { return this->value_; }
  /// Does not compile.
  template <class Learning = frozen>
  T* gradient() const noexcept {
    static_assert(has_gradient<Learning>,
                  "a frozen parameter has no gradient: make it belay::parameter<T, Placement, belay::trainable>, or "
                  "leave it out of the backward");
    return nullptr;
  }

  /// Gives the parameter its memory: `local_size()` elements.
  void bind(T* value) noexcept { this->value_ = value; }

 protected:
  using parameter_base<T>::parameter_base;
};

/// A named tensor of the model: row-major, `[out, in]` for matrices. It is made before its memory exists: a plan counts
/// it, then `bind` gives it memory. Move-only, because two copies would share that memory.
template <class T, class Placement = replicate, class Learning = trainable>
class parameter : public std::conditional_t<has_gradient<Learning>, trainable_parameter<T>, frozen_parameter<T>> {
  static_assert(
      placement<Placement>,
      "a parameter's placement is belay::replicate or belay::shard<Dim, Axis>, or belay::placed<...> of these");
  static_assert(check_placement<Placement>());
  static_assert(!is_partial<Placement>,
                "a parameter cannot be partial: every rank holds the value itself or a part of it, never a term of it");
  static_assert(learning<Learning>, "a parameter is belay::trainable or belay::frozen");
  using base = std::conditional_t<has_gradient<Learning>, trainable_parameter<T>, frozen_parameter<T>>;
  static constexpr std::size_t cuts = cuts_of<Placement>();
  static constexpr bool cut = cuts > 0;

 public:
  using placement_type = Placement;
  using learning_type = Learning;

  /// A parameter held whole.
  explicit parameter(parameter_spec spec, where at = where::current())
    requires(!cut)
      : parameter(std::move(spec), [](const parameter_shape& all) { return whole_box(all.extents()); }, at) {}

  /// A parameter held whole, by name and shape: a matrix begins with normal values of standard deviation 1 / sqrt(its
  /// last extent), which keeps the size of a layer's output, a vector with zeros.
  parameter(std::string name, const parameter_shape& shape, where at = where::current())
    requires(!cut)
      : parameter(parameter_spec{std::move(name), shape, first_values_of(shape)}, at) {}

  /// A parameter of which `part` of the one dimension that its placement cuts is held here.
  parameter(parameter_spec spec, local_part part, where at = where::current())
    requires(cuts == 1)
      : parameter(
            std::move(spec),
            [part](const parameter_shape& all) {
              tensor_box box = whole_box(all.extents());
              box.sides[cut_dimension()] = {part.first, part.first + part.count};
              return box;
            },
            at) {}

  /// A parameter of which `box` is held here.
  parameter(parameter_spec spec, const tensor_box& box, where at = where::current())
    requires cut
      : parameter(std::move(spec), [&](const parameter_shape&) { return box; }, at) {}

  /// A parameter of which this rank of `mesh` holds what the placement gives it, where every cut is even.
  template <has_place Mesh>
  parameter(parameter_spec spec, const Mesh& mesh, where at = where::current())
      : parameter(
            std::move(spec),
            [&](const parameter_shape& all) { return belay::local_box<Placement>(all.extents(), mesh); }, at) {}

 private:
  template <class BoxOf>
    requires std::invocable<const BoxOf&, const parameter_shape&>
  parameter(parameter_spec&& spec, const BoxOf& box_of, where at)
      : base(std::move(spec), entries_of<Placement>, belay::cut_directions<Placement>(), box_of, at) {}

  [[nodiscard]] static constexpr std::size_t cut_dimension() noexcept {
    for (const placement_entry& each : entries_of<Placement>)
      if (each.cuts()) return each.dimension;
    return 0;
  }
  [[nodiscard]] static initial first_values_of(const parameter_shape& shape) noexcept {
    if (shape.rank() < 2 || shape.size() == 0) return initial::constant(0);
    return initial::normal(1.0 / __builtin_sqrt(static_cast<double>(shape[shape.rank() - 1])));
  }
};

/// Whether a layer as a whole is trained: `Layer::learning_type`, or trainable where it says nothing. A layer of which
/// no parameter is ever trained may say so: with `using learning_type = belay::frozen` it needs no backward, and what
/// runs layers for it observes it.
template <class Layer>
struct layer_learning {
  using type = trainable;
};
/// Of a layer that says itself whether it learns.
template <class Layer>
  requires learning<typename Layer::learning_type>
struct layer_learning<Layer> {
  using type = typename Layer::learning_type;
};
template <class Layer>
using layer_learning_t = typename layer_learning<Layer>::type;

template <class T>
void parameter_base<T>::each_run(function_ref<void(std::size_t, std::size_t, std::size_t)> visit) const {
  each_common_run(whole_box(spec_.shape.extents()), box_, visit);
}

template <class T>
void parameter_base<T>::each_kept(function_ref<void(std::size_t, std::span<T>)> visit) const {
  each_kept_range([&](const held_range<T>& range) { range.each_piece(visit); });
}

template <class T>
void parameter_base<T>::each_kept_range(function_ref<void(const held_range<T>&)> visit) const {
  if (!divided_) {
    if (local_size() > 0) visit(held_range<T>{0, local_size(), value_, nullptr, access_});
    return;
  }
  for (const held_range<T>& range : held_)
    if (range.count > 0) visit(range);
}

template <class T>
void parameter_base<T>::each_held(function_ref<void(std::size_t, std::span<T>)> visit) const {
  each_kept([&](std::size_t first, std::span<T> kept) {
    each_run([&](std::size_t global, std::size_t local, std::size_t count) {
      const std::size_t begin = first > local ? first : local;
      const std::size_t end = first + kept.size(), last = end < local + count ? end : local + count;
      if (begin < last) visit(global + begin - local, kept.subspan(begin - first, last - begin));
    });
  });
}

template <class T>
void parameter_base<T>::initialise(std::uint64_t seed, where at) {
  if (spec_.first_values.how() == initial::initializer::filled)
    throw usage_error("parameter " + name() + " takes its first values from a filler: call fill", at);
  fill([&](std::size_t first, std::span<T> out) { write_first_values(spec_, seed, first, out); }, at);
}

template <class T>
void parameter_base<T>::fill(function_ref<void(std::size_t, std::span<T>)> filler, where at) {
  if (value_ == nullptr && !divided_ && local_size() != 0)
    throw usage_error("parameter " + name() + " has no memory yet: bind it before filling it", at);
  each_held(filler);
}

template <class T>
parameter_base<T>::~parameter_base() = default;
template <class T>
parameter_base<T>::parameter_base(parameter_base&&) noexcept = default;
template <class T>
parameter_base<T>& parameter_base<T>::operator=(parameter_base&&) noexcept = default;

template <class T>
parameter_base<T>::parameter_base(parameter_spec&& spec, std::span<const placement_entry> entries, axis_set cut,
                                  function_ref<tensor_box(const parameter_shape&)> box_of, where at)
    : spec_(std::move(spec)), cut_(cut) {
  if (spec_.uses == 0) throw usage_error("parameter " + name() + " has 0 uses: 1, or as many as layers share it", at);
  const std::size_t rank = spec_.shape.rank();
  for (const placement_entry& each : entries)
    if (each.cuts() && each.dimension >= rank)
      throw usage_error("parameter " + name() + " of " + std::to_string(rank) +
                            " dimensions cannot be cut along dimension " + std::to_string(each.dimension),
                        at);
  const auto words = [&] {
    return "parameter " + name() + ": " + shape_text(spec_.shape.extents()) + " elements of " +
           std::to_string(sizeof(T)) + " bytes are";
  };
  static_cast<void>((checked_size(spec_.shape.size()) * sizeof(T)).value(words, at));
  if (!spec_.joins.empty() && (rank < 2 || spec_.shape[1] % spec_.joins.size() != 0))
    throw usage_error("parameter " + name() + " joins " + std::to_string(spec_.joins.size()) +
                          " tensors, and dimension 1 cannot be cut into as many equal parts",
                      at);
  const tensor_box whole = whole_box(spec_.shape.extents());
  box_ = box_of(spec_.shape);
  if (!lies_in(box_, whole))
    throw usage_error("parameter " + name() + ": box " + box_.text() + " lies outside of " + whole.text(), at);
  local_shape_ = spec_.shape;
  for (std::size_t d = 0; d < rank; ++d) local_shape_ = local_shape_.with(d, box_.sides[d].count());
}

}  // namespace belay::inline BELAY_ABI
