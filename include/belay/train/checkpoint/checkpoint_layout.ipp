// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the pieces of all ranks are laid out in the files of a checkpoint, and checked.
#pragma once

#include "belay/train/checkpoint/checkpoint_layout.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::vector<manifest_tensor> declared_state::declarations() const {
  std::vector<manifest_tensor> out;
  for (const declared_piece& each : pieces_) out.push_back({each.tensor, each.shape, {each.piece}});
  return out;
}

BELAY_DECL checkpoint_layout::checkpoint_layout(const group& of, const axes& shape, const declared_state& declared,
                                                where at)
    : shape_(shape) {
  const std::string own = manifest_text::of(declared.declarations());
  for (int rank = 0; rank < of.size(); ++rank) {
    const std::string text = safetensors::broadcast_text(of, rank == of.rank() ? own : "", rank, at);
    const std::string source = "the state of rank " + std::to_string(rank);
    add(rank, manifest_parser(text, source, at).parse_tensors(), at);
    if (rank == of.rank()) keep_own(rank, declared);
  }
  expect_whole(at);
  lay_out_all(at);
  keep_copies(of.rank(), declared);
}

BELAY_DECL std::vector<std::uint32_t> checkpoint_layout::gather_checksums(const group& of,
                                                                          const std::vector<file_to_write>& own,
                                                                          where at) const {
  const auto ranks = static_cast<std::size_t>(of.size());
  std::vector<std::size_t> counts(ranks);
  for (const file& each : files_) counts[static_cast<std::size_t>(each.rank)] += chunks(each);
  const std::size_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<std::uint64_t> mine, all(most * ranks);
  for (const file_to_write& each : own) mine.insert(mine.end(), each.checksums.begin(), each.checksums.end());
  mine.resize(most);
  if (most > 0) of.all_gather(std::span<const std::uint64_t>(mine), std::span<std::uint64_t>(all), at);
  std::vector<std::uint32_t> out;
  std::vector<std::size_t> next(ranks);
  for (const file& each : files_)
    for (std::size_t chunk = 0; chunk < chunks(each); ++chunk) {
      const auto rank = static_cast<std::size_t>(each.rank);
      out.push_back(static_cast<std::uint32_t>(all[rank * most + next[rank]++]));
    }
  return out;
}

BELAY_DECL std::vector<std::uint64_t> checkpoint_layout::sums_of_copies(std::span<std::byte> memory,
                                                                        file_staging& staging, where at) const {
  std::vector<std::uint64_t> out(sums_);
  for (const own_copy& each : own_copies_) out[each.sum] += sum_of(each.of, memory, staging, at);
  return out;
}

BELAY_DECL void checkpoint_layout::expect_equal_copies(std::span<const std::uint64_t> sums, where at) const {
  for (const copied& each : copies_)
    expect_one_value(shape_, tensors_[each.tensor].name, each.stages, sums.subspan(each.first, each.stages.size()), at);
}

BELAY_DECL auto checkpoint_layout::files_of_this_rank(const std::string& folder, std::string_view id,
                                                      std::uint64_t step) -> std::vector<file_to_write> {
  std::vector<file_to_write> out;
  for (own_file& each : own_) {
    const file& of = files_[each.number];
    each.header = of.prefix;
    replace(each.header, no_id, id);
    replace(each.header, padded_step(0), padded_step(step));
    file_to_write next;
    next.path = folder + "/" + of.name;
    next.bytes = of.bytes;
    next.segments.emplace_back(std::as_bytes(std::span<const char>(each.header)));
    next.segments.insert(next.segments.end(), each.segments.begin(), each.segments.end());
    out.push_back(std::move(next));
  }
  return out;
}

BELAY_DECL auto checkpoint_layout::content(std::string_view id, std::uint64_t step,
                                           std::span<const std::uint32_t> checksums) const -> manifest {
  manifest out;
  out.id = id;
  out.step = step;
  out.mesh = shape_;
  out.tensors = tensors_;
  for (const file& each : files_) {
    const auto own = checksums.first(chunks(each));
    checksums = checksums.subspan(own.size());
    out.files.push_back({each.name, each.bytes, {own.begin(), own.end()}});
  }
  return out;
}

BELAY_DECL void checkpoint_layout::add(int rank, std::vector<manifest_tensor> declared, where at) {
  const int stage = coordinate_of(shape_, rank).pipeline;
  for (manifest_tensor& each : declared) {
    const auto [found, is_new] = number_of_.emplace(each.name, listed_tensor{tensors_.size(), stage, {}});
    std::vector<int>& stages = found->second.stages;
    if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
    if (is_new) tensors_.push_back({each.name, each.shape, {}});
    manifest_tensor& tensor = tensors_[found->second.tensor];
    if (tensor.shape != each.shape)
      throw usage_error("ranks list tensor " + printable(each.name) + " in two shapes", at);
    if (found->second.stage != stage) continue;
    manifest_piece& piece = each.pieces.front();
    piece.file = file_number(rank, piece.file);
    file& into = files_[piece.file];
    into.places.emplace_back(found->second.tensor, tensor.pieces.size());
    into.declarations.push_back(declaration_of(each, piece));
    tensor.pieces.push_back(std::move(piece));
  }
}

BELAY_DECL std::size_t checkpoint_layout::file_number(int rank, std::size_t group) {
  const std::string name = checkpoint_file_name(declared_state::group_names[group], rank);
  for (std::size_t i = files_.size(); i-- > 0 && files_[i].rank == rank;)
    if (files_[i].name == name) return i;
  files_.push_back({name, rank, {}, {}, {}, 0});
  return files_.size() - 1;
}

BELAY_DECL auto checkpoint_layout::declaration_of(const manifest_tensor& tensor, const manifest_piece& piece)
    -> safetensors::declaration {
  safetensors::declaration out{piece.part == value_part ? tensor.name : piece.part + "." + tensor.name, piece.type, {}};
  if (piece.count == piece.box.elements())
    for (const box_side& each : piece.box.sides) out.shape.push_back(each.count());
  else
    out.shape.push_back(piece.count);
  return out;
}

BELAY_DECL void checkpoint_layout::keep_own(int rank, const declared_state& declared) {
  const int stage = coordinate_of(shape_, rank).pipeline;
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i].rank == rank) own_.push_back({i, {}, {}});
  for (const declared_piece& each : declared.pieces()) {
    if (number_of_.find(each.tensor)->second.stage != stage) continue;
    const std::string name = checkpoint_file_name(declared_state::group_names[each.piece.file], rank);
    for (own_file& into : own_)
      if (files_[into.number].name == name)
        for (const stored_bytes& segment : each.segments) append(into.segments, segment);
  }
}

BELAY_DECL void checkpoint_layout::lay_out_all(where at) {
  for (file& each : files_) {
    const safetensors::metadata_list about{
        {"format", "belay"}, {"checkpoint", std::string(no_id)}, {"step", padded_step(0)}, {"file", each.name}};
    const safetensors::layout placed = safetensors::lay_out(each.declarations, about, at);
    for (std::size_t i = 0; i < each.places.size(); ++i)
      tensors_[each.places[i].first].pieces[each.places[i].second].begin =
          placed.prefix.size() + placed.tensors[i].begin;
    each.prefix = placed.prefix;
    each.bytes = placed.file_bytes();
  }
}

BELAY_DECL void checkpoint_layout::expect_whole(where at) const {
  for (const manifest_tensor& tensor : tensors_) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    std::map<std::string_view, std::uint64_t> written;
    for (const manifest_piece& each : tensor.pieces) written[each.part] += each.count;
    for (const auto& [part, count] : written)
      if (count != elements)
        throw usage_error("of tensor " + printable(tensor.name) + ", part " + printable(std::string(part)) +
                              ", ranks write " + std::to_string(count) + " elements, it has " +
                              std::to_string(elements) +
                              ": what several ranks or stores call by one name is one tensor; give others names of "
                              "their own",
                          at);
  }
}

BELAY_DECL void checkpoint_layout::keep_copies(int rank, const declared_state& declared) {
  std::size_t sums = 0;
  for (const auto& [name, where_it_is] : number_of_) {
    if (where_it_is.stages.size() == 1) continue;
    copies_.push_back({where_it_is.tensor, where_it_is.stages, sums});
    sums += where_it_is.stages.size();
  }
  sums_.resize(sums);
  const int stage = coordinate_of(shape_, rank).pipeline;
  for (const copied& each : copies_) {
    const auto mine = std::find(each.stages.begin(), each.stages.end(), stage) - each.stages.begin();
    for (const declared_piece& piece : declared.pieces())
      if (piece.tensor == tensors_[each.tensor].name)
        own_copies_.push_back({piece, each.first + static_cast<std::size_t>(mine)});
  }
}

BELAY_DECL std::uint64_t checkpoint_layout::sum_of(const declared_piece& piece, std::span<std::byte> memory,
                                                   file_staging& staging, where at) {
  const std::size_t element = safetensors::bits(piece.piece.type) / 8;
  const std::size_t at_once = memory.size() / element;
  const std::uint64_t kind =
      content_hash().add_text(piece.piece.part).add(static_cast<std::uint64_t>(piece.piece.type)).value();
  const box_runs runs(piece.shape, piece.piece.box);
  std::uint64_t out = 0;
  for (std::uint64_t done = 0; done < piece.piece.count; done += at_once) {
    const auto count = static_cast<std::size_t>(lesser_of<std::uint64_t>(at_once, piece.piece.count - done));
    std::byte* next = memory.data();
    each_stored_part(piece.segments, static_cast<std::size_t>(done) * element, count * element,
                     [&](const stored_bytes& part) {
                       staging.copy(part, next, at);
                       next += part.size();
                     });
    const std::uint64_t first = piece.piece.first + done;
    runs.each_common(first, first + count, 0, largest_value<std::size_t>,
                     [&](std::uint64_t global, std::uint64_t in_box, std::uint64_t length) {
                       out += sum_of_elements(kind, global,
                                              memory.subspan(static_cast<std::size_t>(in_box - first) * element,
                                                             static_cast<std::size_t>(length) * element),
                                              element);
                     });
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
