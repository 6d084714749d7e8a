#include "data/hdf5/hdf5_file.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "runtime/error.h"
#include "runtime/phase_clock.h"
#include "runtime/read_file.h"

namespace jforge {
namespace {

constexpr std::int64_t kSliceBytes = 16 << 20;
constexpr std::int64_t kPlainChunkBytes = 64 << 10;  ///< Suits single records and sequential reads.
constexpr std::int64_t kCompressedChunkBytes = 32 << 10;  ///< One or two per record read.
constexpr unsigned kDeflateLevel = 1;  ///< Fast; within 10 % of the smallest size.
/// Half the fan-out of the chunk B-tree. The default of 32 takes 2 KB per dataset, more than most
/// of a shard's datasets hold.
constexpr unsigned kSmallTreeRank = 4;
constexpr std::size_t kMaxAttributeBytes = 60000;

// The type names are macros that clang-tidy takes for equal branches.
// NOLINTBEGIN(bugprone-branch-clone)
template <Hdf5Element T>
hid_t memory_type() {
  if constexpr (std::same_as<T, std::int32_t>) {
    return H5T_NATIVE_INT32;
  } else if constexpr (std::same_as<T, std::int64_t>) {
    return H5T_NATIVE_INT64;
  } else if constexpr (std::same_as<T, float>) {
    return H5T_NATIVE_FLOAT;
  } else {
    return H5T_NATIVE_UINT8;
  }
}

template <Hdf5Element T>
hid_t file_type() {
  if constexpr (std::same_as<T, std::int32_t>) {
    return H5T_STD_I32LE;
  } else if constexpr (std::same_as<T, std::int64_t>) {
    return H5T_STD_I64LE;
  } else if constexpr (std::same_as<T, float>) {
    return H5T_IEEE_F32LE;
  } else {
    return H5T_STD_U8LE;
  }
}
// NOLINTEND(bugprone-branch-clone)

Hdf5Handle take(Hdf5Kind kind, std::int64_t id, const Hdf5Place& place, std::string_view action) {
  return {kind, hdf5_check(id, place, action)};
}

/// Closes an object, which flushes the chunk cache, so a failure means lost data.
void close_written(Hdf5Handle& object, const Hdf5Place& place) {
  hdf5_check(object.close() ? 0 : -1, place, "write");
}

Hdf5Handle file_access(const Hdf5Place& place) {
  Hdf5Handle access = take(Hdf5Kind::property_list, H5Pcreate(H5P_FILE_ACCESS), place, "open");
  hdf5_check(H5Pset_libver_bounds(access.id(), H5F_LIBVER_EARLIEST, H5F_LIBVER_V18), place,
             "set format bounds of");
  hdf5_check(H5Pset_file_locking(access.id(), false, true), place, "turn off locking of");
  hdf5_check(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG), place, "open");
  return access;
}

Hdf5Handle simple_space(std::int64_t count, const Hdf5Place& place) {
  const auto extent = static_cast<hsize_t>(count);
  return take(Hdf5Kind::dataspace, H5Screate_simple(1, &extent, nullptr), place, "lay out");
}

template <Hdf5Element T>
Hdf5Handle create_dataset(const Hdf5Handle& file, const std::string& name, std::int64_t count,
                          Hdf5Storage storage, const Hdf5Place& place) {
  expect(count >= 0, "negative dataset size");
  const Hdf5Handle properties =
      take(Hdf5Kind::property_list, H5Pcreate(H5P_DATASET_CREATE), place, "create");
  if (count > 0) {
    const bool compressed = storage == Hdf5Storage::compressed;
    const std::int64_t bytes = compressed ? kCompressedChunkBytes : kPlainChunkBytes;
    const auto chunk =
        static_cast<hsize_t>(std::min(count, bytes / static_cast<std::int64_t>(sizeof(T))));
    hdf5_check(H5Pset_chunk(properties.id(), 1, &chunk), place, "create");
    if (compressed) {
      hdf5_check(H5Pset_shuffle(properties.id()), place, "create");
      hdf5_check(H5Pset_deflate(properties.id(), kDeflateLevel), place, "create");
    }
    // Last, so that readers verify stored bytes before they inflate them.
    hdf5_check(H5Pset_fletcher32(properties.id()), place, "create");
    hdf5_check(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER), place, "create");
  }
  // No timestamps: equal content gives equal bytes.
  hdf5_check(H5Pset_obj_track_times(properties.id(), false), place, "create");
  const Hdf5Handle space = simple_space(count, place);
  return take(Hdf5Kind::dataset,
              H5Dcreate2(file.id(), name.c_str(), file_type<T>(), space.id(), H5P_DEFAULT,
                         properties.id(), H5P_DEFAULT),
              place, "create");
}

/// Calls `transfer(memory space, file space, elements done)` for each slice of the range.
template <typename T, typename Transfer>
void for_each_slice(const Hdf5Handle& dataset, std::int64_t offset, std::int64_t count,
                    const Hdf5Place& place, const Transfer& transfer) {
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Dget_space(dataset.id()), place, "read the extent of");
  const std::int64_t total =
      hdf5_check(H5Sget_simple_extent_npoints(space.id()), place, "read the extent of");
  if (offset < 0 || count < 0 || count > total || offset > total - count) {
    const std::string message =
        fmt::format("{}, '{}': elements {} to {} are outside of its {}", place.file.string(),
                    place.object, offset, offset + count, total);
    if (place.writing) {
      throw InternalError(message);
    }
    throw DataError(message);
  }
  constexpr std::int64_t kSliceElements = kSliceBytes / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t done = 0; done < count; done += kSliceElements) {
    const auto length = static_cast<hsize_t>(std::min(kSliceElements, count - done));
    const auto start = static_cast<hsize_t>(offset) + static_cast<hsize_t>(done);
    const Hdf5Handle memory = simple_space(static_cast<std::int64_t>(length), place);
    hdf5_check(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &start, nullptr, &length, nullptr),
               place, "select in");
    transfer(memory.id(), space.id(), done);
    note_progress();
  }
}

template <typename T>
void write_range(const Hdf5Handle& dataset, std::int64_t offset, std::span<const T> values,
                 const Hdf5Place& place) {
  for_each_slice<T>(dataset, offset, static_cast<std::int64_t>(values.size()), place,
                    [&](hid_t memory, hid_t space, std::int64_t done) {
                      hdf5_check(H5Dwrite(dataset.id(), memory_type<T>(), memory, space,
                                          H5P_DEFAULT, values.data() + done),
                                 place, "write");
                    });
}

/// Retries EINTR (network file systems), which HDF5 does not.
template <class Open>
hid_t opened(Open open) {
  hid_t id = -1;
  do {
    errno = 0;
    id = open();
  } while (id < 0 && errno == EINTR);
  return id;
}

const std::vector<H5Z_filter_t> kPlainFilters{H5Z_FILTER_FLETCHER32};  ///< In the order of writing.
const std::vector<H5Z_filter_t> kCompressedFilters{H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE,
                                                   H5Z_FILTER_FLETCHER32};

std::vector<H5Z_filter_t> filters_of(const Hdf5Handle& properties, const Hdf5Place& place) {
  const std::int64_t count =
      hdf5_check(H5Pget_nfilters(properties.id()), place, "read the filters of");
  std::vector<H5Z_filter_t> filters;
  for (std::int64_t i = 0; i < count; ++i) {
    unsigned flags = 0;
    unsigned config = 0;
    std::size_t values = 0;
    filters.push_back(H5Pget_filter2(properties.id(), static_cast<unsigned>(i), &flags, &values,
                                     nullptr, 0, nullptr, &config));
  }
  return filters;
}

/// Returns true if all announced elements are stored; guards their allocation.
bool all_stored(const Hdf5Handle& dataset, std::int64_t count, const Hdf5Place& place) {
  const Hdf5Handle properties =
      take(Hdf5Kind::property_list, H5Dget_create_plist(dataset.id()), place, "read the layout of");
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Dget_type(dataset.id()), place, "read the type of");
  const hsize_t stored = H5Dget_storage_size(dataset.id());
  // 0 means an empty dataset or a failure.
  hdf5_check(stored == 0 && H5Eget_num(H5E_DEFAULT) > 0 ? -1 : 0, place, "read the size of");
  const hsize_t bytes =
      static_cast<hsize_t>(count) * std::max<std::size_t>(1, H5Tget_size(type.id()));
  if (count == 0 || filters_of(properties, place) != kCompressedFilters) {
    return bytes <= stored;
  }
  constexpr hsize_t kMostInflation = 1032;  // Maximum compression ratio of deflate.
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Dget_space(dataset.id()), place, "read the extent of");
  hsize_t chunk = 0;
  hdf5_check(H5Pget_chunk(properties.id(), 1, &chunk), place, "read the layout of");
  hsize_t chunks = 0;
  hdf5_check(H5Dget_num_chunks(dataset.id(), space.id(), &chunks), place, "count the chunks of");
  return bytes / kMostInflation <= stored &&
         chunks == (static_cast<hsize_t>(count) + chunk - 1) / chunk;
}

/// Throws EnvironmentError if the file exists but cannot be opened: that is not damage.
void await_present(const std::filesystem::path& path, double wait_seconds) {
  try {
    await_file(path, wait_seconds);
  } catch (const DataError& error) {
    std::error_code reason;
    if (std::filesystem::exists(path, reason) || reason) {
      throw EnvironmentError(error.what());
    }
    throw;
  }
}

}  // namespace

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path, bool sealed, Hdf5Storage storage)
    : path_(path), sealed_(sealed), storage_(storage) {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  const Hdf5Handle creation =
      take(Hdf5Kind::property_list, H5Pcreate(H5P_FILE_CREATE), place(), "create");
  if (sealed_) {
    hdf5_check(H5Pset_userblock(creation.id(), kSealBytes), place(), "create");
  }
  if (storage_ == Hdf5Storage::compressed) {
    hdf5_check(H5Pset_istore_k(creation.id(), kSmallTreeRank), place(), "create");
  }
  const Hdf5Handle access = file_access(place());
  if (!sealed_) {
    hdf5_check(H5Pset_alignment(access.id(), kReservedAlignment, kReservedAlignment), place(),
               "create");
  }
  file_ = take(Hdf5Kind::file, opened([&] {
                 return H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation.id(), access.id());
               }),
               place(), "create");
}

template <Hdf5Element T>
void Hdf5Writer::write(const std::string& dataset, std::span<const T> values) {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  Hdf5Handle target = create_dataset<T>(file_, dataset, static_cast<std::int64_t>(values.size()),
                                        storage_, place(dataset));
  write_range<T>(target, 0, values, place(dataset));
  close_written(target, place(dataset));
}

template <Hdf5Element T>
void Hdf5Writer::create(const std::string& dataset, std::int64_t count) {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  Hdf5Handle target = create_dataset<T>(file_, dataset, count, storage_, place(dataset));
  close_written(target, place(dataset));
}

template <Hdf5Element T>
void Hdf5Writer::write_slice(const std::string& dataset, std::int64_t offset,
                             std::span<const T> values) {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  Hdf5Handle target = take(Hdf5Kind::dataset, H5Dopen2(file_.id(), dataset.c_str(), H5P_DEFAULT),
                           place(dataset), "open");
  write_range<T>(target, offset, values, place(dataset));
  close_written(target, place(dataset));
}

template <Hdf5Element T>
std::uint64_t Hdf5Writer::reserve(const std::string& dataset, std::int64_t count) {
  expect(count > 0 && !sealed_, "only unsealed files have reserved datasets, and none is empty");
  const auto lock = hdf5_lock(Hdf5Turn::write);
  const Hdf5Handle properties =
      take(Hdf5Kind::property_list, H5Pcreate(H5P_DATASET_CREATE), place(dataset), "create");
  hdf5_check(H5Pset_layout(properties.id(), H5D_CONTIGUOUS), place(dataset), "create");
  hdf5_check(H5Pset_alloc_time(properties.id(), H5D_ALLOC_TIME_EARLY), place(dataset), "create");
  hdf5_check(H5Pset_fill_time(properties.id(), H5D_FILL_TIME_NEVER), place(dataset), "create");
  hdf5_check(H5Pset_obj_track_times(properties.id(), false), place(dataset), "create");
  const Hdf5Handle space = simple_space(count, place(dataset));
  Hdf5Handle target = take(Hdf5Kind::dataset,
                           H5Dcreate2(file_.id(), dataset.c_str(), file_type<T>(), space.id(),
                                      H5P_DEFAULT, properties.id(), H5P_DEFAULT),
                           place(dataset), "create");
  const haddr_t offset = H5Dget_offset(target.id());
  hdf5_check(offset == HADDR_UNDEF ? -1 : 0, place(dataset), "reserve");
  close_written(target, place(dataset));
  return offset;
}

void Hdf5Writer::attribute(const std::string& name, std::string_view text) {
  expect(text.size() <= kMaxAttributeBytes && text.find('\0') == std::string_view::npos,
         "attribute '" + name + "' is too long or holds a NUL");
  const auto lock = hdf5_lock(Hdf5Turn::write);
  const std::string terminated(text);
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Tcopy(H5T_C_S1), place(name), "describe attribute");
  hdf5_check(H5Tset_size(type.id(), terminated.size() + 1), place(name), "describe attribute");
  hdf5_check(H5Tset_cset(type.id(), H5T_CSET_UTF8), place(name), "describe attribute");
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Screate(H5S_SCALAR), place(name), "describe attribute");
  Hdf5Handle target =
      take(Hdf5Kind::attribute,
           H5Acreate2(file_.id(), name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
           place(name), "create attribute");
  hdf5_check(H5Awrite(target.id(), type.id(), terminated.c_str()), place(name), "write attribute");
  close_written(target, place(name));
}

void Hdf5Writer::attribute(const std::string& name, std::int64_t value) {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Screate(H5S_SCALAR), place(name), "describe attribute");
  Hdf5Handle target = take(
      Hdf5Kind::attribute,
      H5Acreate2(file_.id(), name.c_str(), H5T_STD_I64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT),
      place(name), "create attribute");
  hdf5_check(H5Awrite(target.id(), H5T_NATIVE_INT64, &value), place(name), "write attribute");
  close_written(target, place(name));
}

void Hdf5Writer::close() {
  const auto lock = hdf5_lock(Hdf5Turn::write);
  hdf5_check(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), place(), "flush");
  if (!file_.close()) {
    hdf5_check(-1, place(), "close");
  }
  if (sealed_) {
    seal_file(path_);
  }
}

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path, SealCheck check,
                       std::optional<double> wait_seconds)
    : path_(path) {
  await_present(path_, wait_seconds ? *wait_seconds : publication_wait_seconds(path_));
  check_seal(path_, check);
  const auto lock = hdf5_lock();
  const Hdf5Handle access = file_access(place());
  file_ = take(Hdf5Kind::file,
               opened([&] { return H5Fopen(path_.c_str(), H5F_ACC_RDONLY, access.id()); }), place(),
               "open");
}

bool Hdf5Reader::has(const std::string& dataset) const {
  const auto lock = hdf5_lock();
  const htri_t exists = H5Lexists(file_.id(), dataset.c_str(), H5P_DEFAULT);
  return hdf5_check(exists, place(dataset), "look up") > 0;
}

void Hdf5Reader::refuse(const std::string& dataset, std::string_view what) const {
  throw DataError(fmt::format("{}, '{}': {}, which jforge never writes; fetch or make it again",
                              path_.string(), dataset, what));
}

Hdf5Handle Hdf5Reader::open_link(const std::string& dataset) const {
  H5L_info_t link{};
  hdf5_check(H5Lget_info(file_.id(), dataset.c_str(), &link, H5P_DEFAULT), place(dataset), "open");
  // Other links may lead into other files.
  if (link.type != H5L_TYPE_HARD) {
    refuse(dataset, "it is a link");
  }
  return take(Hdf5Kind::dataset, H5Dopen2(file_.id(), dataset.c_str(), H5P_DEFAULT), place(dataset),
              "open");
}

Hdf5Handle Hdf5Reader::open_dataset(const std::string& dataset) const {
  Hdf5Handle source = open_link(dataset);
  check_storage(source, dataset);
  return source;
}

void Hdf5Reader::check_storage(const Hdf5Handle& source, const std::string& dataset) const {
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Dget_type(source.id()), place(dataset), "read the type of");
  const H5T_class_t kind = H5Tget_class(type.id());
  if (H5Tcommitted(type.id()) != 0 || (kind != H5T_INTEGER && kind != H5T_FLOAT)) {
    refuse(dataset, "its element type is user-defined");
  }
  const Hdf5Handle properties = take(Hdf5Kind::property_list, H5Dget_create_plist(source.id()),
                                     place(dataset), "read the layout of");
  if (H5Pget_external_count(properties.id()) != 0) {
    refuse(dataset, "its data are in another file");
  }
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Dget_space(source.id()), place(dataset), "read the extent of");
  const std::int64_t count =
      hdf5_check(H5Sget_simple_extent_npoints(space.id()), place(dataset), "read the extent of");
  const H5D_layout_t layout = H5Pget_layout(properties.id());
  if (layout == H5D_CONTIGUOUS && count == 0) {
    return;
  }
  hsize_t chunk = 0;
  if (layout != H5D_CHUNKED || H5Pget_chunk(properties.id(), 1, &chunk) != 1 ||
      chunk > static_cast<hsize_t>(kSliceBytes)) {
    refuse(dataset, "its layout is not the plain chunked one");
  }
  const std::vector<H5Z_filter_t> filters = filters_of(properties, place(dataset));
  if (filters != kPlainFilters && filters != kCompressedFilters) {
    refuse(dataset, "it has another filter than a checksum and our compression");
  }
}

std::int64_t Hdf5Reader::size(const std::string& dataset) const {
  const auto lock = hdf5_lock();
  const Hdf5Handle source = open_dataset(dataset);
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Dget_space(source.id()), place(dataset), "read the extent of");
  if (H5Sget_simple_extent_ndims(space.id()) != 1) {
    throw DataError(fmt::format("{}, '{}': not one-dimensional", path_.string(), dataset));
  }
  const std::int64_t count =
      hdf5_check(H5Sget_simple_extent_npoints(space.id()), place(dataset), "read the extent of");
  if (!all_stored(source, count, place(dataset))) {
    throw DataError(
        fmt::format("{}, '{}': incomplete: {} elements are announced but not all are stored",
                    path_.string(), dataset, count));
  }
  return count;
}

template <Hdf5Element T>
std::vector<T> Hdf5Reader::read(const std::string& dataset) const {
  std::vector<T> values(static_cast<std::size_t>(size(dataset)));
  read_slice<T>(dataset, 0, values);
  return values;
}

template <Hdf5Element T>
void Hdf5Reader::read_slice(const std::string& dataset, std::int64_t offset,
                            std::span<T> out) const {
  const auto lock = hdf5_lock();
  const Hdf5Handle source = open_dataset(dataset);
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Dget_type(source.id()), place(dataset), "read the type of");
  if (H5Tequal(type.id(), file_type<T>()) <= 0) {
    throw DataError(
        fmt::format("{}, '{}': its element type is not the expected one", path_.string(), dataset));
  }
  for_each_slice<T>(source, offset, static_cast<std::int64_t>(out.size()), place(dataset),
                    [&](hid_t memory, hid_t space, std::int64_t done) {
                      hdf5_check(H5Dread(source.id(), memory_type<T>(), memory, space, H5P_DEFAULT,
                                         out.data() + done),
                                 place(dataset), "read");
                    });
}

template <Hdf5Element T>
std::uint64_t Hdf5Reader::locate(const std::string& dataset, std::int64_t count) const {
  const auto lock = hdf5_lock();
  const Hdf5Handle source = open_link(dataset);
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Dget_type(source.id()), place(dataset), "read the type of");
  const Hdf5Handle properties = take(Hdf5Kind::property_list, H5Dget_create_plist(source.id()),
                                     place(dataset), "read the layout of");
  if (H5Tcommitted(type.id()) != 0 || H5Tequal(type.id(), file_type<T>()) <= 0 ||
      H5Pget_layout(properties.id()) != H5D_CONTIGUOUS ||
      H5Pget_external_count(properties.id()) != 0) {
    refuse(dataset, "it is not one run of the expected elements");
  }
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Dget_space(source.id()), place(dataset), "read the extent of");
  const std::int64_t found =
      hdf5_check(H5Sget_simple_extent_npoints(space.id()), place(dataset), "read the extent of");
  const haddr_t offset = H5Dget_offset(source.id());
  const auto limit = static_cast<std::uint64_t>(std::filesystem::file_size(path_));
  if (found != count || count < 0 || offset > limit ||
      static_cast<std::uint64_t>(count) > (limit - offset) / sizeof(T)) {
    throw DataError(fmt::format("{}, '{}': {} elements where {} were expected, or fewer stored",
                                path_.string(), dataset, found, count));
  }
  return offset;
}

std::string Hdf5Reader::text_attribute(const std::string& name) const {
  const auto lock = hdf5_lock();
  const Hdf5Handle source =
      take(Hdf5Kind::attribute, H5Aopen(file_.id(), name.c_str(), H5P_DEFAULT), place(name),
           "open attribute");
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Aget_type(source.id()), place(name), "read attribute");
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Aget_space(source.id()), place(name), "read attribute");
  const std::size_t bytes = H5Tget_size(type.id());
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) != 0 ||
      H5Sget_simple_extent_npoints(space.id()) != 1 || bytes > kMaxAttributeBytes + 1) {
    throw DataError(fmt::format("{}: attribute '{}' is not a text", path_.string(), name));
  }
  std::string text(bytes, '\0');
  hdf5_check(H5Aread(source.id(), type.id(), text.data()), place(name), "read attribute");
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::int64_t Hdf5Reader::integer_attribute(const std::string& name) const {
  const auto lock = hdf5_lock();
  const Hdf5Handle source =
      take(Hdf5Kind::attribute, H5Aopen(file_.id(), name.c_str(), H5P_DEFAULT), place(name),
           "open attribute");
  const Hdf5Handle type =
      take(Hdf5Kind::datatype, H5Aget_type(source.id()), place(name), "read attribute");
  const Hdf5Handle space =
      take(Hdf5Kind::dataspace, H5Aget_space(source.id()), place(name), "read attribute");
  if (H5Tget_class(type.id()) != H5T_INTEGER || H5Sget_simple_extent_npoints(space.id()) != 1) {
    throw DataError(fmt::format("{}: attribute '{}' is not an integer", path_.string(), name));
  }
  std::int64_t value = 0;
  hdf5_check(H5Aread(source.id(), H5T_NATIVE_INT64, &value), place(name), "read attribute");
  return value;
}

#define JFORGE_INSTANTIATE_HDF5(T)                                                                \
  template void Hdf5Writer::write<T>(const std::string&, std::span<const T>);                     \
  template void Hdf5Writer::create<T>(const std::string&, std::int64_t);                          \
  template void Hdf5Writer::write_slice<T>(const std::string&, std::int64_t, std::span<const T>); \
  template std::uint64_t Hdf5Writer::reserve<T>(const std::string&, std::int64_t);                \
  template std::uint64_t Hdf5Reader::locate<T>(const std::string&, std::int64_t) const;           \
  template std::vector<T> Hdf5Reader::read<T>(const std::string&) const;                          \
  template void Hdf5Reader::read_slice<T>(const std::string&, std::int64_t, std::span<T>) const;
JFORGE_INSTANTIATE_HDF5(std::int32_t)
JFORGE_INSTANTIATE_HDF5(std::int64_t)
JFORGE_INSTANTIATE_HDF5(float)
JFORGE_INSTANTIATE_HDF5(std::uint8_t)
#undef JFORGE_INSTANTIATE_HDF5

}  // namespace jforge
