/* api.h - our own minimal declarations of the PJRT C API (OpenXLA, xla/pjrt/c/pjrt_c_api.h): the calls and argument
 * structs this program uses, under the API's own names. test/e2e/pjrt.py compares them with the official header.
 *
 * A plugin is a shared library that exports GetPjrtApi(). Its table holds function i at byte 40 + 8 i; every argument
 * struct begins with its size as the caller knows it. The API only ever appends, so a table that covers our calls and
 * sizes that cover our fields are all that is asked. Nothing is negotiated: see PJ_MINOR_MIN. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 0.58 is the first version with today's order of the table (0.57 moved entries). */
enum { PJ_MAJOR = 0, PJ_MINOR_MIN = 58 };

/* Calls by their place in the table. */
#define PJ_CALLS(X)                                                                                                  \
    X(Error_Destroy, 0)                                                                                              \
    X(Error_Message, 1)                                                                                              \
    X(Error_GetCode, 2)                                                                                              \
    X(Plugin_Initialize, 3)                                                                                          \
    X(Event_Destroy, 5)                                                                                              \
    X(Event_Await, 8)                                                                                                \
    X(Client_Create, 10)                                                                                             \
    X(Client_Destroy, 11)                                                                                            \
    X(Client_PlatformName, 12)                                                                                       \
    X(Client_PlatformVersion, 14)                                                                                    \
    X(Client_AddressableDevices, 16)                                                                                 \
    X(Client_Compile, 20)                                                                                            \
    X(Client_BufferFromHostBuffer, 22)                                                                               \
    X(DeviceDescription_Kind, 26)                                                                                    \
    X(Device_GetDescription, 29)                                                                                     \
    X(Device_MemoryStats, 34)                                                                                        \
    X(Executable_Destroy, 40)                                                                                        \
    X(Executable_GetCostAnalysis, 46)                                                                                \
    X(Executable_OptimizedProgram, 48)                                                                               \
    X(Executable_Serialize, 49)                                                                                      \
    X(LoadedExecutable_Destroy, 50)                                                                                  \
    X(LoadedExecutable_GetExecutable, 51)                                                                            \
    X(LoadedExecutable_Execute, 55)                                                                                  \
    X(Executable_DeserializeAndLoad, 56)                                                                             \
    X(Buffer_Destroy, 58)                                                                                            \
    X(Buffer_ToHostBuffer, 70)                                                                                       \
    X(TopologyDescription_Create, 82)                                                                                \
    X(TopologyDescription_Destroy, 83)                                                                               \
    X(TopologyDescription_PlatformName, 84)                                                                          \
    X(TopologyDescription_PlatformVersion, 85)                                                                       \
    X(TopologyDescription_GetDeviceDescriptions, 86)                                                                 \
    X(Compile, 89)                                                                                                   \
    X(Executable_GetCompiledMemoryStats, 96)
enum pj_slot {
#define X(name, slot) PJ_##name = slot,
    PJ_CALLS(X)
#undef X
};
enum { PJ_SLOT_MAX = PJ_Executable_GetCompiledMemoryStats };

typedef void *(*pj_fn)(void *args); /* returns an error or NULL; two calls return nothing */
struct pj_api {
    size_t struct_size;
    void *extension_start;
    size_t version_size;
    void *version_extension;
    int major_version, minor_version;
    pj_fn call[];
};

#define PJ_HEAD                                                                                                      \
    size_t struct_size;                                                                                              \
    void *extension_start

enum pj_buffer_type { /* of the API's list, those we use */
                      PJ_TYPE_PRED = 1,
                      PJ_TYPE_S8 = 2,
                      PJ_TYPE_S32 = 4,
                      PJ_TYPE_U8 = 6,
                      PJ_TYPE_F16 = 10,
                      PJ_TYPE_F32 = 11,
                      PJ_TYPE_BF16 = 13,
                      PJ_TYPE_S4 = 21,
                      PJ_TYPE_U4 = 22,
};
enum pj_code { PJ_INVALID_ARGUMENT = 3, PJ_NOT_FOUND = 5, PJ_RESOURCE_EXHAUSTED = 8, PJ_UNIMPLEMENTED = 12 };
enum { PJ_VALUE_STRING = 0, PJ_VALUE_INT64 = 1, PJ_VALUE_FLOAT = 3 }; /* NamedValue.type */

struct pj_NamedValue {
    PJ_HEAD;
    const char *name;
    size_t name_size;
    int type;
    union {
        const char *string_value;
        int64_t int64_value;
        float float_value;
    };
    size_t value_size;
};
struct pj_Program {
    PJ_HEAD;
    char *code;
    size_t code_size;
    const char *format;
    size_t format_size;
};
struct pj_ExecuteOptions {
    PJ_HEAD;
    void **send_callbacks;
    void **recv_callbacks;
    size_t num_send_ops;
    size_t num_recv_ops;
    int launch_id;
    const int64_t *non_donatable_input_indices;
    size_t num_non_donatable_input_indices;
    void *context;
    const char *call_location;
    size_t num_tasks;
    int *task_ids;
    int64_t *incarnation_ids;
};
struct pj_Error_Destroy_Args {
    PJ_HEAD;
    void *error;
};
struct pj_Error_Message_Args {
    PJ_HEAD;
    const void *error;
    const char *message;
    size_t message_size;
};
struct pj_Error_GetCode_Args {
    PJ_HEAD;
    const void *error;
    int code;
};
struct pj_Plugin_Initialize_Args {
    PJ_HEAD;
};
struct pj_Event_Destroy_Args {
    PJ_HEAD;
    void *event;
};
struct pj_Event_Await_Args {
    PJ_HEAD;
    void *event;
};
struct pj_Client_Create_Args {
    PJ_HEAD;
    const struct pj_NamedValue *create_options;
    size_t num_options;
    void *kv_get_callback;
    void *kv_get_user_arg;
    void *kv_put_callback;
    void *kv_put_user_arg;
    void *client;
    void *kv_try_get_callback;
    void *kv_try_get_user_arg;
};
struct pj_Client_Destroy_Args {
    PJ_HEAD;
    void *client;
};
struct pj_Client_PlatformName_Args {
    PJ_HEAD;
    void *client;
    const char *platform_name;
    size_t platform_name_size;
};
struct pj_Client_PlatformVersion_Args {
    PJ_HEAD;
    void *client;
    const char *platform_version;
    size_t platform_version_size;
};
struct pj_Client_AddressableDevices_Args {
    PJ_HEAD;
    void *client;
    void *const *addressable_devices;
    size_t num_addressable_devices;
};
struct pj_Client_Compile_Args {
    PJ_HEAD;
    void *client;
    const struct pj_Program *program;
    const char *compile_options;
    size_t compile_options_size;
    void *executable;
};
struct pj_Client_BufferFromHostBuffer_Args {
    PJ_HEAD;
    void *client;
    const void *data;
    int type;
    const int64_t *dims;
    size_t num_dims;
    const int64_t *byte_strides;
    size_t num_byte_strides;
    int host_buffer_semantics; /* 0: read during the call only */
    void *device;
    void *memory;
    void *device_layout;
    void *done_with_host_buffer;
    void *buffer;
};
struct pj_Device_GetDescription_Args {
    PJ_HEAD;
    void *device;
    void *device_description;
};
struct pj_DeviceDescription_Kind_Args {
    PJ_HEAD;
    void *device_description;
    const char *device_kind;
    size_t device_kind_size;
};
struct pj_Device_MemoryStats_Args {
    PJ_HEAD;
    void *device;
    int64_t bytes_in_use;
    int64_t peak_bytes_in_use;
    bool peak_bytes_in_use_is_set;
    int64_t num_allocs;
    bool num_allocs_is_set;
    int64_t largest_alloc_size;
    bool largest_alloc_size_is_set;
    int64_t bytes_limit;
    bool bytes_limit_is_set;
    int64_t bytes_reserved;
    bool bytes_reserved_is_set;
    int64_t peak_bytes_reserved;
    bool peak_bytes_reserved_is_set;
    int64_t bytes_reservable_limit;
    bool bytes_reservable_limit_is_set;
    int64_t largest_free_block_bytes;
    bool largest_free_block_bytes_is_set;
    int64_t pool_bytes;
    bool pool_bytes_is_set;
    int64_t peak_pool_bytes;
    bool peak_pool_bytes_is_set;
};
struct pj_Executable_Destroy_Args {
    PJ_HEAD;
    void *executable;
};
struct pj_Executable_GetCostAnalysis_Args {
    PJ_HEAD;
    void *executable;
    size_t num_properties;
    const struct pj_NamedValue *properties;
};
struct pj_Executable_OptimizedProgram_Args {
    PJ_HEAD;
    void *executable;
    struct pj_Program *program;
};
struct pj_Executable_Serialize_Args {
    PJ_HEAD;
    const void *executable;
    const char *serialized_bytes;
    size_t serialized_bytes_size;
    void *serialized_executable;
    void (*serialized_executable_deleter)(void *);
};
struct pj_LoadedExecutable_Destroy_Args {
    PJ_HEAD;
    void *executable;
};
struct pj_LoadedExecutable_GetExecutable_Args {
    PJ_HEAD;
    void *loaded_executable;
    void *executable;
};
struct pj_LoadedExecutable_Execute_Args {
    PJ_HEAD;
    void *executable;
    struct pj_ExecuteOptions *options;
    void *const *const *argument_lists;
    size_t num_devices;
    size_t num_args;
    void **const *output_lists;
    void **device_complete_events;
    void *execute_device;
};
struct pj_Executable_DeserializeAndLoad_Args {
    PJ_HEAD;
    void *client;
    const char *serialized_executable;
    size_t serialized_executable_size;
    void *loaded_executable;
    const char *overridden_serialized_compile_options;
    size_t overridden_serialized_compile_options_size;
};
struct pj_Buffer_Destroy_Args {
    PJ_HEAD;
    void *buffer;
};
struct pj_Buffer_ToHostBuffer_Args {
    PJ_HEAD;
    void *src;
    void *host_layout;
    void *dst;
    size_t dst_size;
    void *event;
};
struct pj_TopologyDescription_Create_Args {
    PJ_HEAD;
    const char *topology_name;
    size_t topology_name_size;
    const struct pj_NamedValue *create_options;
    size_t num_options;
    void *topology;
};
struct pj_TopologyDescription_Destroy_Args {
    PJ_HEAD;
    void *topology;
};
struct pj_TopologyDescription_PlatformName_Args {
    PJ_HEAD;
    void *topology;
    const char *platform_name;
    size_t platform_name_size;
};
struct pj_TopologyDescription_PlatformVersion_Args {
    PJ_HEAD;
    void *topology;
    const char *platform_version;
    size_t platform_version_size;
};
struct pj_TopologyDescription_GetDeviceDescriptions_Args {
    PJ_HEAD;
    const void *topology;
    void *const *descriptions;
    size_t num_descriptions;
};
struct pj_Compile_Args {
    PJ_HEAD;
    const void *topology;
    const struct pj_Program *program;
    const char *compile_options;
    size_t compile_options_size;
    void *client;
    void *executable;
};
struct pj_Executable_GetCompiledMemoryStats_Args {
    PJ_HEAD;
    void *executable;
    int64_t generated_code_size_in_bytes;
    int64_t argument_size_in_bytes;
    int64_t output_size_in_bytes;
    int64_t alias_size_in_bytes;
    int64_t temp_size_in_bytes;
    int64_t host_generated_code_size_in_bytes;
    int64_t host_argument_size_in_bytes;
    int64_t host_output_size_in_bytes;
    int64_t host_alias_size_in_bytes;
    int64_t host_temp_size_in_bytes;
    int64_t peak_memory_in_bytes;
};
